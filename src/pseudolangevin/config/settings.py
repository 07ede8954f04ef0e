"""The typed settings of a run: what one TOML file says.

The default is the paper's smallest network (N = 11 160), at two temperatures, in minutes on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import signature
from typing import Annotated, Any, Literal, Union

from pydantic import Field, PlainValidator, field_validator, model_validator

from .. import tasks
from ..chains import MAX_STEPS
from ..layout import check_temperatures
from ..samplers.adam import adam
from ..samplers.base import Sampler
from ..samplers.hybrid import hybrid_monte_carlo, minibatch_hybrid_monte_carlo
from ..samplers.langevin import full_batch_langevin, naive_pseudo_langevin, pseudo_langevin
from .signatures import Section, from_signature

SAMPLERS: dict[str, Callable[..., Sampler]] = {
    function.__name__: function
    for function in (
        pseudo_langevin,
        naive_pseudo_langevin,
        full_batch_langevin,
        hybrid_monte_carlo,
        minibatch_hybrid_monte_carlo,
        adam,
    )
}
NOT_IN_FILES = ("potential", "dataset", "key", "validation", "validate_every", "patience")
"""Arguments of samplers and tasks that come from elsewhere, or from Python alone."""
WITHOUT_TEMPERATURE = ("adam",)
DEFAULT_TEMPERATURES = [1e-5, 3e-5]
DEFAULT_RECORD_EVERY, DEFAULT_RECORDS = 15_000, 40
"""A record visits every example of the training and the test set, which takes as long as 100 steps or so; this far
apart they cost less than 5 % of the run (`pseudolangevin bench` measures it), the checkpoints at its start and end
included, also where the run takes fifteen seconds. It is a multiple of the shortest refresh
interval, so segments of one length do."""
FAR_OFF = 4.0
"""A default interval may be off by this factor."""
REFRESH_EVERY: int = signature(pseudo_langevin).parameters["refresh_every"].default
MAX_RECORDS = 10_000_000
MAX_SEED = 2**32 - 1
TAGS = {"task": ("kind", "spin_vectors"), "sampler": ("name", "pseudo_langevin"), "start": ("kind", "adam")}
"""Sections with alternatives: the key that chooses, and its default."""

Count = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Name = Annotated[str, Field(min_length=1)]


def _seed(description: str) -> dict[str, Any]:
    return {"seed": (Seed, Field(0, description=description))}


SpinVectors: Any = from_signature(
    tasks.spin_vectors,
    tag=("kind", "spin_vectors"),
    skip=NOT_IN_FILES,
    defaults={"num_train": 55_800, "num_test": 10_044},
    last={"seed": (Seed, Field(6, description="of the class vectors and the examples; 6 comes near the paper's data"))},
)

FashionMnist: Any = from_signature(
    tasks.fashion_mnist,
    tag=("kind", "fashion_mnist"),
    skip=NOT_IN_FILES,
    last=_seed("of the random projection"),
)
Idx: Any = from_signature(tasks.idx, tag=("kind", "idx"), skip=NOT_IN_FILES, last=_seed("of the random projection"))


class Files(Section):
    """Your own data."""

    kind: Literal["files"] = Field(description="which one")
    file: Name | None = Field(default=None, description=".npz file with the arrays `inputs` and `targets`")
    inputs: Name | None = Field(default=None, description=".npy file, one row per example (instead of `file`)")
    targets: Name | None = Field(default=None, description=".npy file, one row per example (instead of `file`)")
    test_file: Name | None = Field(default=None, description="optional test set, as `file`")
    test_inputs: Name | None = Field(default=None, description="optional test set: .npy file")
    test_targets: Name | None = Field(default=None, description="optional test set: .npy file")

    stream: bool = Field(
        default=False, description="leave inputs and targets on disk (.npy or Zarr) and fetch mini-batches ahead"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Files:
        if self.stream and self.file is not None:
            raise ValueError("stream = true needs inputs and targets as .npy files or Zarr folders, not file")
        for prefix in ("", "test_"):
            file, pair = (
                getattr(self, prefix + "file"),
                (getattr(self, prefix + "inputs"), getattr(self, prefix + "targets")),
            )
            if (pair[0] is None) != (pair[1] is None):
                raise ValueError(f"{prefix}inputs and {prefix}targets come together; give both .npy files")
            if file is not None and pair[0] is not None:
                raise ValueError(f"{prefix}file and {prefix}inputs both name data; keep one of them")
            if not prefix and file is None and pair[0] is None:
                raise ValueError('no data: give file = "data.npz", or inputs = "x.npy" and targets = "y.npy"')
        return self


class Network(Section):
    """The feed-forward network."""

    sizes: Annotated[list[Count], Field(min_length=2)] = Field(
        default=[100, 50, 100, 10], description="widths from the input to the output; the paper's are 100, L1, 100, 10"
    )
    output_activation: Literal["relu", "identity"] = Field(
        default="relu", description='"relu" as in the paper, or "identity", with which no class can die'
    )


def _weight_decay(value: Any) -> float | dict[str, float]:
    table = value if isinstance(value, dict) else {"*": value}
    if not table:
        raise ValueError('no pattern; write a number, or a table such as { "*.bias" = 1.0, "*" = 9.0 }')
    for pattern, decay in table.items():
        where = f"{pattern!r} " if isinstance(value, dict) else ""
        if isinstance(decay, bool) or not isinstance(decay, int | float):
            raise ValueError(f"{where}must be a number, or a table of patterns and numbers")
        if not math.isfinite(decay):
            raise ValueError(f"{where}must be finite")
        if decay < 0:
            raise ValueError(f"{where}must be at least 0, or exp(−U/T) is not normalisable")
    return {pattern: float(decay) for pattern, decay in table.items()} if isinstance(value, dict) else float(value)


class PotentialSettings(Section):
    """U = mean loss + λ/(2N)·|w|²."""

    kind: Literal["classification", "regression"] = Field(
        default="classification", description="cross-entropy or squared error"
    )
    weight_decay: Annotated[float | dict[str, float], PlainValidator(_weight_decay)] = Field(
        default=10.0611,
        description="λ of the regulariser λ/(2N)·|w|²; or by tensor, of which the first pattern holds: "
        '{ "*.bias" = 1.0, "*" = 9.0 }',
    )


class RandomStart(Section):
    """Weights at random."""

    kind: Literal["random"] = Field(description="which one")
    seed: Seed = Field(default=0, description="of the random weights; every chain has its own")


AdamStart: Any = from_signature(
    adam,
    tag=("kind", "adam"),
    skip=NOT_IN_FILES,
    defaults={"learning_rate": 1e-3},
    first={
        "num_steps": (Count, Field(2_000, description="training steps before sampling; every chain has its own")),
        "candidates": (
            Annotated[int, Field(ge=1, le=1000)],
            Field(4, description="trainings per chain; those without a dead class are taken first"),
        ),
    },
    last=_seed("of the random weights and the training"),
)


class FileStart(Section):
    """Weights from a file."""

    kind: Literal["file"] = Field(description="which one")
    file: Name = Field(
        description=".npz file with one array per tensor, named like layer1.kernel; all may have leading axes "
        "(temperature, chain)"
    )


class Recording(Section):
    """What is written to the run folder, and how often."""

    keep_weights_every: int = Field(
        default=10, ge=0, le=MAX_STEPS, description="keep the weights of every so many-th record; 0: never"
    )
    weights_dtype: Literal["float16", "float32", "float64"] = Field(
        default="float32", description="precision of the kept weights"
    )
    observe_examples: Count | None = Field(
        default=None, description="measure on the first so many examples only; unset: on all"
    )
    checkpoint_every: Count | None = Field(
        default=None, description="records between checkpoints; unset: by time alone"
    )
    checkpoint_seconds: float = Field(
        default=30.0, gt=0, description="seconds between checkpoints, where checkpoint_every is unset"
    )
    keep_checkpoints: int = Field(default=3, ge=2, le=1000, description="how many checkpoints are kept")


class PlacementSettings(Section):
    """Where the chains live."""

    kind: Literal["automatic", "one_device"] = Field(
        default="automatic", description='"automatic": chains over all devices, or as many as divide them; "one_device"'
    )
    chains: Count | None = Field(default=None, description="ways the chains are split; unset: 1, or as kind says")
    data: Count | None = Field(default=None, description="ways the examples are split; unset: 1")
    weights: Count | None = Field(default=None, description="ways every large tensor is split; unset: 1")

    @model_validator(mode="after")
    def _not_both(self) -> PlacementSettings:
        if self.kind == "one_device" and self.is_split:
            raise ValueError('kind = "one_device" and a number of ways contradict each other; use kind = "automatic"')
        return self

    @property
    def is_split(self) -> bool:
        """Whether it says how many ways."""
        return (self.chains, self.data, self.weights) != (None, None, None)


TaskSection: Any = SpinVectors | FashionMnist | Idx | Files
StartSection: Any = RandomStart | AdamStart | FileStart
SamplerSection: Any = Union[  # noqa: UP007 (built at run time, so that a new sampler is one more entry of SAMPLERS)
    tuple(from_signature(function, tag=("name", name), skip=NOT_IN_FILES) for name, function in SAMPLERS.items())
]


def default_interval(num_steps: int) -> int:
    """Steps between records where nothing is said: the divisor of `num_steps` nearest, as a ratio, to what is wished.

    Where even that is far off, as with a prime number, it is refused: a record costs as much as many steps.
    """
    wished = max(1.0, min(DEFAULT_RECORD_EVERY, num_steps / DEFAULT_RECORDS))
    small = [n for n in range(1, math.isqrt(num_steps) + 1) if num_steps % n == 0]
    divisors = [*small, *(num_steps // n for n in small)]
    even = [n for n in divisors if n % REFRESH_EVERY == 0 and 0.5 <= n / wished <= 2]  # with segments of one length
    nearest = min(even or divisors, key=lambda n: abs(math.log(n / wished)))
    if max(nearest / wished, wished / nearest) > FAR_OFF:
        rounded = round(wished) * max(1, round(num_steps / round(wished)))
        raise ValueError(
            f"num_steps = {num_steps} has no divisor near {wished:.0f} to record at; use num_steps = {rounded}, or "
            "give record_every"
        )
    return nearest


class Settings(Section):
    """One run."""

    temperatures: list[float] | None = Field(
        default=DEFAULT_TEMPERATURES, description="T of each group of chains, all different"
    )
    num_chains: Count = Field(default=2, description="independent chains at each temperature")
    num_steps: Count = Field(default=DEFAULT_RECORDS * DEFAULT_RECORD_EVERY, description="steps of every chain")
    record_every: Count = Field(
        default=DEFAULT_RECORD_EVERY,
        description="steps between records; num_steps is a multiple of it. A record visits all examples, like P/S "
        "steps. Unset: about 15000, or about 40 records of a shorter run",
    )
    seed: Seed = Field(default=0, description="of the dynamics")
    task: Annotated[TaskSection, Field(discriminator="kind")] = Field(default=SpinVectors(), description="the data")
    network: Network = Field(default=Network(), description="the network")
    potential: PotentialSettings = Field(default=PotentialSettings(), description="what is sampled: exp(−U/T)")
    sampler: Annotated[SamplerSection, Field(discriminator="name")] = Field(description="how it is sampled")
    start: Annotated[StartSection, Field(discriminator="kind")] = Field(
        default=AdamStart(), description="where the chains begin"
    )
    recording: Recording = Field(default=Recording(), description="what is kept")
    placement: PlacementSettings = Field(default=PlacementSettings(), description="where it runs")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Choose the default alternative of a section that does not say which, temperatures, and when to record."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for section, (key, default) in TAGS.items():
            value = data.setdefault(section, {})
            if isinstance(value, dict) and key not in value:
                data[section] = {key: default} | value
        name = (
            data["sampler"].get("name") if isinstance(data["sampler"], dict) else getattr(data["sampler"], "name", "")
        )
        if name in WITHOUT_TEMPERATURE:
            data.setdefault("temperatures", None)
        steps = data.get("num_steps")
        if isinstance(steps, int) and steps >= 1 and data.get("record_every") is None:
            data["record_every"] = default_interval(steps)
        return data

    @field_validator("temperatures")
    @classmethod
    def _temperatures(cls, values: list[float] | None) -> list[float] | None:
        return None if values is None else check_temperatures(values)

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        name = self.sampler.name
        if name in WITHOUT_TEMPERATURE and self.temperatures is not None:
            raise ValueError(f"temperatures = {self.temperatures}: {name} has no temperature; leave the key out")
        if name not in WITHOUT_TEMPERATURE and self.temperatures is None:
            raise ValueError("temperatures is missing; give a list, for example temperatures = [1e-5, 3e-5]")
        if self.num_steps % self.record_every:
            multiple = -(-self.num_steps // self.record_every) * self.record_every
            raise ValueError(
                f"num_steps = {self.num_steps} is not a multiple of record_every = {self.record_every}, so its end "
                f"would leave no record; use num_steps = {multiple}, or a record_every that divides it"
            )
        if self.num_records > MAX_RECORDS:
            raise ValueError(
                f"num_steps/record_every = {self.num_records} records are more than {MAX_RECORDS}; raise record_every"
            )
        return self

    @property
    def num_records(self) -> int:
        """Records of the whole run."""
        return self.num_steps // self.record_every
