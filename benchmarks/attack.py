"""Attacks on run folders, configurations and Python calls, with fixed seeds.

    python -m benchmarks.attack kills --count 1000 --out benchmarks/results/kills-cpu.json
    python -m benchmarks.attack mutations --count 300
    python -m benchmarks.attack configurations --count 500
    python -m benchmarks.attack calls --count 300

A kill ends a run at a random moment: while it starts, samples, writes a checkpoint, resumes or is extended. The run
must then continue to the bits of an undisturbed one. A mutation changes one file of a finished run; it must be found and
named, or leave every result as it was. A bad configuration or call must give one line, without a traceback, and touch
nothing outside the folder.
"""
# ruff: noqa: PLC0415, D103, PLR0915, E501  imports wait until the environment is set

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np


def same_files(left: Path, right: Path) -> bool:
    """Return whether traces and kept weights are equal to the bit, apart from the clock."""
    from pseudolangevin.runs.store import RecordFile

    def content(path: Path) -> dict[str, bytes]:
        with RecordFile(path) as file:
            values, bad = file.read()
        return {name: value[:bad].tobytes() for name, value in values.items() if name != "seconds"}

    return all(content(left / name) == content(right / name) for name in ("trace.records", "weights.records"))


# -- kills


def child(config_file: Path, out: Path, num_steps: int) -> int:
    from pseudolangevin.runs import config, session

    gc.disable()  # nearly all of a child is tracing, which leaves no garbage worth looking for
    if (out / "config.toml").exists():
        outcome = session.continue_run(out, [f"num_steps={num_steps}"], progress=False)
    else:
        outcome = session.start(config.read(config_file, [f"num_steps={num_steps}"]), out, progress=False)
    return 130 if outcome.interrupted else 0


def num_records(out: Path) -> int:
    from pseudolangevin.runs.store import RecordFile

    try:
        with RecordFile(out / "trace.records") as file:
            return file.recorded
    except ValueError:
        return 0


def wait_for_moment(rng: random.Random, moment: str, pid: int, out: Path) -> None:
    """Wait for a moment of the start, for some records and a little more, or for a checkpoint that is being written."""
    deadline = time.monotonic() + (rng.uniform(0, 2.0) if moment == "starting" else 600)
    target = num_records(out) + rng.randint(1, 4)
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        if moment == "checkpoint" and any(out.glob("checkpoints/.*.partial")):
            return
        if moment == "sampling" and num_records(out) >= target:
            time.sleep(rng.uniform(0, 0.05))
            return
        time.sleep(0 if moment == "checkpoint" else 0.002)


def kills(count: int, seed: int, seconds: float, folder: Path) -> dict:
    """Kill runs until `count` signals were sent to running processes, and compare every finished run."""
    import pseudolangevin.runs.session  # noqa: F401  the children are forked from a process that has imported everything
    from tests.runs.small_runs import SMALL_RUN

    warnings.simplefilter("ignore")  # JAX warns of forking; nothing of it runs in this process
    rng, began, found = random.Random(seed), time.monotonic(), collections.Counter()
    steps, unexplained = 1_000, []
    inputs = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    np.savez(folder / "data.npz", inputs=inputs, targets=np.arange(60) % 3)
    text = SMALL_RUN.replace(
        "num_train = 60\nnum_test = 20\ndimension = 6\nnum_classes = 3\n", 'kind = "files"\nfile = "data.npz"\n'
    )
    (folder / "run.toml").write_text(
        text.replace("num_steps = 400", f"num_steps = {steps}").replace("every = 30", "every = 20")
    )

    def run(out: Path, num_steps: int, number: int = 0, moment: str = "") -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            with open(folder / "errors.txt", "w") as errors:
                os.dup2(errors.fileno(), 2)
                code = 99
                try:
                    code = child(folder / "run.toml", out, num_steps)
                except KeyboardInterrupt:  # before the run answers signals; the command line exits with 130 as well
                    code = 130
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
        if number:
            wait_for_moment(rng, moment, pid, out)
            os.kill(pid, number)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert run(folder / "whole", steps) == 0
    out, done = folder / "killed", 0
    while found["kills"] < count and time.monotonic() - began < seconds:
        number = rng.choices([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], [8, 1, 1])[0]
        moment = rng.choices(["sampling", "checkpoint", "starting"], [5, 3, 2])[0]
        done = max([0, *(int(file.name[:10]) for file in out.glob("checkpoints/*.checkpoint"))])
        num_steps = max(done, rng.choice([steps // 2, steps, steps]))
        code = run(out, num_steps, number, moment)
        if code not in (0, -number, 130, -signal.SIGINT, -signal.SIGTERM, 1):
            found["failures"] += 1
            errors = (folder / "errors.txt").read_text()
            unexplained.append(f"exit {code} after {signal.Signals(number).name}, {moment}: {errors[-300:]}")
            print(errors[-2_000:], file=sys.stderr)
        found["kills"] += code != 0
        found[signal.Signals(number).name] += code != 0
        found[f"{moment}{' of an extension' if num_steps == steps and done >= steps // 2 else ''}"] += code != 0
        if code == 0 and num_steps == steps:
            found["runs"] += 1
            found["differing runs"] += not same_files(out, folder / "whole")
            shutil.rmtree(out)
    found["failures"] += run(out, steps) != 0
    found["runs"] += 1
    found["differing runs"] += not same_files(out, folder / "whole")
    return {**found, "unexplained": unexplained}


# -- mutations of a finished run


@contextmanager
def shared_programs():
    """Let equal settings share their compiled programs."""
    from pseudolangevin.runs import session

    built, build = {}, session.build

    def build_once(settings, **how):
        key = settings.model_dump_json(exclude={"num_steps", "record_every", "recording"})
        if key not in built:
            built[key] = build(settings, **how)
        return replace(built[key], settings=settings)

    session.build = build_once
    try:
        yield
    finally:
        session.build = build


def mutate(rng: random.Random, run: Path, outside: Path) -> str:
    """Change one file of a run at random, and describe the change."""
    files = sorted(file for file in run.rglob("*") if file.is_file() and file.name not in ("lock", "log.txt"))
    file, other = rng.choice(files), rng.choice(files)
    content = bytearray(file.read_bytes())
    where = rng.randrange(len(content) or 1)
    how = rng.choice(
        ["flip"] * 6 + ["zeros", "cut", "append", "swap", "delete", "copy", "empty", "link", "junk", "folder"]
    )
    if how == "flip" and content:
        content[where] ^= 1 << rng.randrange(8)
    elif how == "zeros":
        content[where : where + 64] = bytes(len(content[where : where + 64]))
    elif how == "cut":
        del content[where:]
    elif how == "append":
        content += rng.randbytes(rng.randint(1, 2_000))
    elif how == "swap":
        half = len(content) // 2
        content = content[half:] + content[:half]
    elif how == "copy":
        content = bytearray(other.read_bytes())
    elif how == "empty":
        content.clear()
    elif how == "junk":
        content[:] = rng.randbytes(len(content))
    file.unlink()
    if how == "link":
        (outside / "target").write_bytes(content)
        file.symlink_to(outside / "target")
    elif how == "folder":
        file.mkdir()
        (file / "mine.txt").write_text("mine")
    elif how != "delete":
        file.write_bytes(content)
    return f"{how} {file.relative_to(run)} at {where}"


def mutations(count: int, seed: int, seconds: float, folder: Path) -> dict:
    """Mutate copies of a finished run, and read and extend them."""
    import jax

    from pseudolangevin.runs import session
    from pseudolangevin.runs.report import write_report
    from tests.runs.small_runs import small_settings, snapshot

    def content(result) -> dict:
        parts = {"trace": dict(result.trace.variables), "weights": result.weights, "samples": result.samples}
        arrays = {name: [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(part)] for name, part in parts.items()}
        arrays["trace"] = [result.trace[name].values.tobytes() for name in sorted(map(str, result.trace.variables))]
        return arrays | {"sampler": repr(result.sampler)}

    rng, began, found, wrong = random.Random(seed), time.monotonic(), collections.Counter(), []
    with shared_programs(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.start(small_settings(), folder / "whole", progress=False)
        shutil.copytree(folder / "whole", folder / "long")
        session.continue_run(folder / "long", ["num_steps=430"], progress=False)
        whole = content(session.load(folder / "whole"))
        for number in range(count):
            if time.monotonic() - began > seconds:
                break
            run, outside = folder / f"run{number}", folder / "outside"
            shutil.copytree(folder / "whole", run)
            shutil.rmtree(outside, ignore_errors=True)
            outside.mkdir()
            what = mutate(rng, run, outside)
            mine, before = sorted(run.rglob("mine.txt")), snapshot(outside)
            verdicts = []
            for action in ("load", "report", "resume"):
                try:
                    if action == "load":
                        with warnings.catch_warnings(record=True) as named:
                            warnings.simplefilter("always")
                            result = content(session.load(run))
                        if any("checkpoint" in str(one.message) for one in named):
                            result["weights"] = whole["weights"]  # the final weights are those of that checkpoint
                        same = result == whole
                        verdicts.append("harmless" if same else "WRONG")
                    elif action == "report":
                        if number % 10 == 0 or "trace" in what:
                            write_report(run)
                    else:
                        session.continue_run(run, ["num_steps=430"], progress=False)
                        verdicts.append("harmless" if same_files(run, folder / "long") else "WRONG")
                except ValueError as error:
                    text = str(error)
                    verdicts.append("found" if "\n" not in text or hasattr(error, "lines") else "TRACEBACK")
                except Exception as error:
                    verdicts.append(f"TRACEBACK {type(error).__name__}: {error}")
            if snapshot(outside) != before or not all(file.exists() for file in mine):
                verdicts.append("TOUCHED")
            found["mutations"] += 1
            found["found" if "found" in verdicts else "harmless"] += 1
            if any(verdict.split()[0] in ("WRONG", "TRACEBACK", "TOUCHED") for verdict in verdicts):
                wrong.append(f"{what}: {verdicts}")
            shutil.rmtree(run)
    return {**found, "wrong": len(wrong), "examples": wrong[:10]}


# -- configurations


NASTY = [
    "0", "-1", "1", "1e400", "nan", "inf", "-inf", "1e18", "1000000000000000000", "9" * 5_000, "0x" + "f" * 5_000, '""', '"a"',
    '"~nosuchuser/x.npz"', '"/dev/zero"', '"/proc/self/mem"', '"\\u0000"', "[]", "[[]]", "[1e-3, 1e-3]", "[-1.0]", "{}",
    "true", "1979-05-27", "[" * 3_000 + "]" * 3_000, '"' + "x" * 100_000 + '"', "[1e-300]", "100000", "2147483647",
    "4294967296", '"; rm -rf /"', '"../../../../etc/passwd"', "{ a = { b = { c = 1 } } }", "[1, 'a']", "1.5",
]  # fmt: skip


def configurations(count: int, seed: int, seconds: float, folder: Path) -> dict:
    """Read and build configurations in which some values, keys or bytes are bad."""
    from pseudolangevin.runs import build, config
    from tests.runs.small_runs import SMALL_RUN

    def lines_of(text: str) -> list[str]:
        return [line for line in text.splitlines() if "=" in line]

    rng, began, found, wrong = random.Random(seed), time.monotonic(), collections.Counter(), []
    complete = config.to_toml(config.parse(SMALL_RUN))
    names = [
        f"{section}.{key}"
        for section in config.CHOICES
        for model in config.CHOICES[section].values()
        for key in model.model_fields
    ]
    before = sorted(path.name for path in folder.iterdir())
    for number in range(count):
        if time.monotonic() - began > seconds:
            break
        text, overrides = rng.choice([SMALL_RUN, complete]), []
        how = rng.choice(["value", "value", "value", "set", "bytes", "key", "lines"])
        if how == "value":
            line = rng.choice(lines_of(text))
            text = text.replace(line, f"{line.partition('=')[0].lstrip('# ')}= {rng.choice(NASTY)}", 1)
        elif how == "set":
            overrides = [f"{rng.choice(names)}={rng.choice(NASTY)}" for _ in range(rng.randint(1, 3))]
        elif how == "bytes":
            raw = bytearray(text.encode())
            for _ in range(rng.randint(1, 8)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            text = raw.decode("latin-1")
        elif how == "key":
            line = rng.choice(lines_of(text))
            text = text.replace(line, line[1:], 1)
        else:
            kept = text.splitlines()
            rng.shuffle(kept)
            text = "\n".join(kept)
        (folder / "run.toml").write_text(text, encoding="utf-8")
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
        signal.alarm(60)
        try:
            build.build(config.read(folder / "run.toml", overrides))
            found["valid"] += 1
        except config.ConfigError as error:
            found["rejected"] += 1
            if not error.lines or any("\n" in line or len(line) > 2_000 for line in error.lines):
                wrong.append(f"{number}: {how}: {str(error)[:300]}")
        except Exception as error:
            wrong.append(f"{number}: {how}: {type(error).__name__}: {str(error)[:200]} {traceback.format_exc()[-300:]}")
        finally:
            signal.alarm(0)
        found["configurations"] += 1
    (folder / "run.toml").unlink()
    touched = sorted(path.name for path in folder.iterdir()) != before
    return {**found, "touched": touched, "wrong": len(wrong), "examples": wrong[:10]}


# -- Python calls


def calls(count: int, seed: int, seconds: float, folder: Path) -> dict:
    """Call `sample`, `resume` and `load` with one bad argument each."""
    import jax

    import pseudolangevin as pl

    rng, began, found, wrong = random.Random(seed), time.monotonic(), collections.Counter(), []
    inputs, targets = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3
    train = pl.Dataset(inputs, targets)
    network = pl.models.feedforward((6, 3), output_activation="identity")
    weights = network.init(jax.random.key(0))
    sampler = pl.full_batch_langevin(pl.classification(network.apply, weight_decay=1.0), train, time_step=0.1)
    good = {"temperatures": [1e-3], "num_steps": 4, "record_every": 2, "key": 0}
    pl.sample(sampler, weights, folder=folder / "good", **good)
    (folder / "link").symlink_to(folder / "outside")
    (folder / "file").write_text("mine")
    bad = [
        None, 0, -1, 1.5, float("nan"), float("inf"), 10**30, "", "x", "\x00", b"x", [], {}, (), [1, 2, 3], object(), True,
        np.zeros(3), np.zeros((0, 2)), np.array("a"), lambda: 0, range(3), [[1e-3]], ["a"], {"a": 1}, 1j, jax.numpy.ones(2),
    ]  # fmt: skip
    where = [None, "", "\x00", "a\x00b", 3, [], b"x", folder / "good", folder / "file", folder / "file" / "run", folder / "link",
             "/proc/nothing", "/dev/null", "x" * 5_000, "~nosuchuser/run", object()]  # fmt: skip
    names = ["temperatures", "num_chains", "num_steps", "record_every", "key", "test", "observe_examples", "observables",
             "on_record", "keep_weights_every", "chunk_size", "placement", "max_seconds", "weights", "sampler"]  # fmt: skip
    before = {path.name for path in folder.iterdir()}
    home = Path.cwd()
    os.chdir(folder)
    try:
        for number in range(count):
            if time.monotonic() - began > seconds:
                break
            what, value, place = rng.choice(names), rng.choice(bad), rng.choice(where)
            action = rng.choice(["sample", "sample", "sample", "folder", "load", "resume"])
            described = f"{number}: {action} {what}={str(value)[:30]!r} place={str(place)[-20:]!r}"
            signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
            signal.alarm(60)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if action == "sample":
                        options = {"sampler": sampler, "weights": weights, **good, what: value}
                        target = folder / f"new{number}" if rng.random() < 0.3 else None
                        pl.sample(options.pop("sampler"), options.pop("weights"), folder=target, **options)
                    elif action == "folder":
                        pl.sample(sampler, weights, folder=place, **good)
                    elif action == "load":
                        pl.load(place, rng.choice([sampler, None]), num_records=rng.choice([None, 1, -1, "x"]))
                    else:
                        pl.resume(
                            place, rng.choice([sampler, (), None]), num_steps=rng.choice([None, 6, 0, 10**30, "x"])
                        )
                found["accepted"] += 1
            except (ValueError, TypeError) as error:
                found["rejected"] += 1
                last = traceback.extract_tb(error.__traceback__)[-1].filename
                if "\n" in str(error) or ("pseudolangevin" not in last and "attack" not in last):
                    wrong.append(f"{described}: {type(error).__name__}: {str(error)[:150]} in {last[-40:]}")
            except Exception as error:
                wrong.append(f"{described}: {type(error).__name__}: {str(error)[:150]}")
            finally:
                signal.alarm(0)
            found["calls"] += 1
    finally:
        os.chdir(home)
    made = {name for path in folder.iterdir() if not (name := path.name).startswith("new")}
    return {
        **found,
        "touched": sorted(made - before - {"x", "~nosuchuser"}),
        "wrong": len(wrong),
        "examples": wrong[:40],
    }


ATTACKS = {"kills": kills, "mutations": mutations, "configurations": configurations, "calls": calls}


def main() -> None:
    """Run one attack, print what was found, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e6, help="time limit")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        if options.attack == "kills":
            os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{folder}/cache")
            os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
            os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        began = time.monotonic()
        found = ATTACKS[options.attack](options.count, options.seed, options.seconds, Path(folder))
    found = {"attack": options.attack, "seed": options.seed, "seconds": round(time.monotonic() - began), **found}
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(bool(found.get("wrong") or found.get("touched") or found.get("failures") or found.get("differing runs")))


if __name__ == "__main__":
    main()
