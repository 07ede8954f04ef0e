// Numbers on an axis: scales, ticks, and how numbers are written.

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const powerOfTen = (exponent) => "10" + [...String(exponent)].map((c) => SUPERSCRIPT[c]).join("");

/** A number for a reader: four to six digits, powers of ten written out. */
function formatNumber(value, digits = 5) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "—";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e7) {
    const text = String(Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size))))));
    const [whole, rest] = text.split(".");
    return whole.replace(/\B(?=(\d{3})+$)/g, "\u202f").replace("-", "−") + (rest ? "." + rest : "");
  }
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const short = String(Number(mantissa)).replace("-", "−");
  return (short === "1" ? "" : short + "×") + powerOfTen(Number(exponent));
}

/** A linear or logarithmic map from data to pixels. */
class Scale {
  constructor(domain, range, log) {
    this.log = log;
    this.domain = domain;
    this.range = range;
    const [a, b] = domain.map((value) => this.warp(value));
    this.start = a;
    this.factor = (range[1] - range[0]) / (b - a || 1);
  }

  warp(value) {
    return this.log ? Math.log10(value) : value;
  }

  /** Data to pixels; NaN for what a logarithm cannot show. */
  map(value) {
    if (value === null || (this.log && !(value > 0))) return NaN;
    return this.range[0] + (this.warp(value) - this.start) * this.factor;
  }

  invert(pixel) {
    const value = this.start + (pixel - this.range[0]) / this.factor;
    return this.log ? 10 ** value : value;
  }

  /** Labelled ticks {value, label}, and a common power of ten for small or large linear axes. */
  ticks(count) {
    return this.log ? this.logTicks(count) : this.linearTicks(count);
  }

  linearTicks(count) {
    const [low, high] = this.domain;
    const rough = (high - low) / Math.max(count, 1);
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((multiple) => unit * multiple >= rough * 0.999);
    const values = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) values.push(i * step);
    const largest = Math.max(Math.abs(low), Math.abs(high));
    const exponent = Math.floor(Math.log10(largest));
    const common = exponent < -3 || exponent >= 6 ? exponent : 0;
    const decimals = Math.min(12, Math.max(0, common - Math.floor(Math.log10(step) + 1e-9)));
    const label = (value) => {
      const [whole, rest] = (value / 10 ** common).toFixed(decimals).split(".");
      return whole.replace(/\B(?=(\d{3})+$)/g, "\u202f").replace("-", "−") + (rest ? "." + rest : "");
    };
    return { ticks: values.map((value) => ({ value, label: label(value) })), factor: common ? "×" + powerOfTen(common) : "" };
  }

  logTicks(count) {
    const [low, high] = this.domain;
    const decades = Math.log10(high / low);
    // Within two decades 1, 2 and 5 are labelled; within half of one, round numbers as on a linear axis.
    if (decades < 0.7) {
      const linear = this.linearTicks(count);
      return { ticks: linear.ticks.filter((tick) => tick.value > 0), factor: linear.factor };
    }
    const multiples = decades <= 2.2 ? [1, 2, 5] : [1];
    const stride = Math.max(1, Math.ceil((decades * multiples.length) / (count * 1.6)));
    const ticks = [];
    for (let exponent = Math.floor(Math.log10(low)); exponent <= Math.log10(high); exponent++) {
      for (let digit = 1; digit < 10; digit++) {
        const value = digit * 10 ** exponent;
        if (value < low * 0.999 || value > high * 1.001) continue;
        const labelled = multiples.includes(digit) && (multiples.length > 1 || exponent % stride === 0);
        ticks.push({ value, label: labelled ? formatNumber(value, 2) : "" });
      }
    }
    return { ticks, factor: "" };
  }
}
