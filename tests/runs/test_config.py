"""The TOML file: defaults, errors, overrides, the printed form, users' own data."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import config
from pseudolangevin.config import ConfigError
from pseudolangevin.config.build import build
from pseudolangevin.config.settings import NOT_IN_FILES, SAMPLERS

REQUIRED = {
    "naive_pseudo_langevin": "time_step = 0.1",
    "full_batch_langevin": "time_step = 0.1",
    "hybrid_monte_carlo": "time_step = 0.1\nnum_leapfrog_steps = 5",
    "minibatch_hybrid_monte_carlo": "time_step = 0.1\nnum_leapfrog_steps = 5",
}
TINY = "[task]\nnum_train = 40\nnum_test = 8\ndimension = 4\nnum_classes = 2\n[network]\nsizes = [4, 2]\n"


def test_default_is_the_papers_small_network():
    settings = config.parse("")
    sizes = settings.network.sizes
    assert sum((a + 1) * b for a, b in pairwise(sizes)) == 11_160
    assert settings.task.num_train == 55_800
    assert settings.potential.weight_decay == 10.0611
    assert settings.sampler.name == "pseudo_langevin"


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_with_the_defaults_of_its_function(name):
    settings = config.parse(f'[sampler]\nname = "{name}"\n{REQUIRED.get(name, "")}')
    for argument, parameter in inspect.signature(getattr(pl, name)).parameters.items():
        if argument not in NOT_IN_FILES and parameter.default is not inspect.Parameter.empty:
            assert getattr(settings.sampler, argument) == parameter.default
    assert config.parse(config.to_toml(settings)) == settings


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_is_built(name):
    batch_size = "batch_size = 4" if name == "adam" else ""
    experiment = build(
        config.parse(TINY + f'[sampler]\nname = "{name}"\n{REQUIRED.get(name, batch_size)}\n[start]\nbatch_size = 4\n')
    )
    assert experiment.plan.sampler.name == name


def test_printed_configuration_explains_itself_and_round_trips():
    text = config.to_toml(config.parse("", ['start.kind="file"', 'start.file="a \\"b\\"\\\\c\\u007f\\t.npz"']))
    assert config.parse(text).start.file == 'a "b"\\c\x7f\t.npz'
    entries = [line for line in text.splitlines() if " =" in line]
    assert any(line.startswith("# batch_size =") for line in entries)  # unset, and said to be
    assert "temperature_ratio = 0.01  # 𝒯" in text


def test_weight_decay_by_tensor():
    text = TINY + '[potential]\nweight_decay = { "*.bias" = 0, "*" = 5.0 }\n[start]\nkind = "random"'
    settings = config.parse(text)
    assert settings.potential.weight_decay == {"*.bias": 0.0, "*": 5.0}
    assert config.parse(config.to_toml(settings)) == settings
    experiment = build(settings)
    stiffness = experiment.plan.sampler.potential.stiffness(experiment.weights_shape)
    assert stiffness == {"layer1": {"kernel": 0.5, "bias": 0.0}}
    with pytest.raises(ConfigError, match=r"no pattern for layer1\.kernel"):
        build(config.parse(text.replace('"*" = 5.0', '"layer1.bias" = 5.0')))


def test_overrides():
    settings = config.parse("num_steps = 400", ["sampler.batch_size=1024", "temperatures=[1e-4]", "task.seed = 3"])
    assert settings.sampler.batch_size == 1024
    assert settings.temperatures == [1e-4]
    assert settings.task.seed == 3
    assert config.parse("", ["sampler.name=adam"]).temperatures is None


@pytest.mark.parametrize(
    ("num_steps", "records"),
    [(600_000, 40), (1_000_000, 50), (750_000, 50), (20_000, 40), (12_345, 15), (250, 50), (7, 7)],
)
def test_records_are_far_apart_unless_the_run_is_short(num_steps, records):
    assert config.parse(f"num_steps = {num_steps}").num_records == records


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[sampler]\nbatchsize = 3", r"sampler.batchsize = 3: unknown key; did you mean sampler.batch_size\?"),
        ("batch_size = 4", r"batch_size = 4: unknown key; did you mean sampler.batch_size\?"),
        ("[network]\nnum_steps = 4", r"network.num_steps = 4: unknown key; did you mean start.num_steps\?"),
        ("[network]\nqqq = 4", "network.qqq = 4: unknown key; remove it; known here: sizes, output_activation"),
        ("[sampler]\nname = 'adm'", r"sampler.name = 'adm': unknown; did you mean 'adam'\?"),
        (
            "[sampler]\nname = 'adam'\nmass_floor = 0.1\nmasses_per = 'row'",
            "sampler.mass_floor, masses_per: not known to name = 'adam'; remove, or choose another name",
        ),
        ("sampler = 3", "sampler = 3: must be a table"),
        ("[sampelr]\nbatch_size = 3\nname = 'adam'", r"^\[sampelr\]: unknown section; did you mean \[sampler\]\?$"),
        ("[wheels]\nround = true", r"^\[wheels\]: unknown section; known sections: \[task\], \[network\], "),
        ("num_steps = true", "num_steps = True: must be an integer"),
        ("num_steps = 250\nrecord_every = 200", "not a multiple of record_every = 200.*use num_steps = 400"),
        ("num_steps = 10007", "num_steps = 10007 has no divisor near 250.*use num_steps = 10000, or give record_every"),
        ("temperatures = [1e-5, -1.0]", r"temperatures = -1.0 is not positive; exp\(−U/T\) needs T > 0"),
        ("temperatures = [1e300]", "beyond single precision"),
        ("temperatures = [1e-5, 1e-5]", "repeats a value; use num_chains"),
        ("temperatures = [1.0]\n[sampler]\nname = 'adam'", "adam has no temperature; leave the key out"),
        ("[sampler]\nname = 'full_batch_langevin'", "sampler.time_step is missing"),
        ("[sampler]\nprecision = 'exact'", "sampler.precision = 'exact': not a precision; use"),
        ("[sampler]\nvariance_max_batches = 100000000000000000000", "must be less than or equal to 2147483647"),
        ("[potential]\nweight_decay = nan", "potential.weight_decay = nan: must be finite"),
        ("[potential]\nweight_decay = -1", "potential.weight_decay = -1: must be at least 0"),
        ("[potential]\nweight_decay = 'big'", "potential.weight_decay = 'big': must be a number, or a table"),
        ("[potential]\nweight_decay = {'*' = -1}", "'\\*' must be at least 0"),
        ("record_every = 1\nnum_steps = 20000000", "20000000 records are more than.*raise record_every"),
        ("[task]\nkind = 'files'\ninputs = 'x.npy'", "inputs and targets come together"),
        ("x", "is not valid TOML"),
    ],
)
def test_errors_name_key_value_and_remedy(text, line):
    with pytest.raises(ConfigError, match=line) as caught:
        config.parse(text)
    assert len(caught.value.lines) == 1
    assert "\n" not in caught.value.lines[0]


def test_every_error_has_its_line():
    with pytest.raises(ConfigError) as caught:
        config.parse("seed = -1\nnum_chains = 0\n[network]\nsizes = [3]")
    assert [line.split()[0] for line in caught.value.lines] == ["num_chains", "seed", "network.sizes"]


@pytest.mark.parametrize("override", ["a b=3", "num_steps.x=3", "num_steps=", "temperatures=[1e-5", "num_steps", "=3"])
def test_bad_overrides(override):
    with pytest.raises(ConfigError, match="--set"):
        config.parse("num_steps = 200", [override])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[task]\nnum_train = 2000000000\ndimension = 2000000000", "need about .* GB and this machine has"),
        ("[network]\nsizes = [100, 2000000000, 10]", "network.sizes, num_chains and temperatures need about"),
        (TINY + "[sampler]\ntemperature_ratio = 0.7", "sampler: temperature_ratio = 0.7 exceeds"),
        (TINY + "[sampler]\nbatch_size = 41", "sampler: batch_size = 41 must be an integer between 2 and 40"),
        (
            TINY.replace("[4, 2]", "[5, 2]"),
            "task and network: an input has 4 components and the network takes 5; make",
        ),
        (TINY.replace("[4, 2]", "[4, 1]"), "label 1, out of range for 1 outputs"),
        (TINY + "[recording]\nobserve_examples = 41", "recording: observe_examples = 41"),
        (TINY + "[start]\nbatch_size = 400", "start: batch_size = 400"),
        ("[task]\nkind = 'files'\nfile = '/no/such.npz'", "task: /no/such.npz cannot be read: No such file"),
        (TINY + "[start]\nkind = 'file'\nfile = '/no/such.npz'", "start.file: /no/such.npz cannot be read: No such"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_runs(text, line):
    with pytest.raises(ConfigError, match=line):
        build(config.parse(text + ("" if "[start]" in text else "\n[start]\nkind = 'random'")))


class TestOwnData:
    @pytest.fixture
    def data(self, tmp_path):
        rng = np.random.default_rng(0)
        inputs, targets = rng.normal(size=(20, 4)).astype(np.float32), rng.integers(0, 2, 20)
        np.savez(tmp_path / "train.npz", inputs=inputs, targets=targets)
        np.save(tmp_path / "x.npy", inputs[:8])
        np.save(tmp_path / "y.npy", targets[:8])
        return inputs, targets

    def settings(self, tmp_path, task: str):
        (tmp_path / "run.toml").write_text(
            f"[task]\nkind = 'files'\n{task}\n[network]\nsizes = [4, 2]\n[start]\nkind = 'random'\n"
        )
        return config.read(tmp_path / "run.toml")

    def test_files_relative_to_the_configuration(self, tmp_path, data):
        text = "file = 'train.npz'\ntest_inputs = 'x.npy'\ntest_targets = 'y.npy'"
        plan = build(self.settings(tmp_path, text)).plan
        assert np.array_equal(plan.sampler.dataset.inputs, data[0])
        assert np.array_equal(plan.sampler.dataset.targets, data[1])
        assert plan.test is not None
        assert plan.test.num_examples == 8

    def test_pickles_are_never_read(self, tmp_path, data):
        np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
        np.savez(tmp_path / "train.npz", inputs=np.array([print], object), targets=np.zeros(1))
        for text in ("inputs = 'x.npy'\ntargets = 'y.npy'", "file = 'train.npz'"):
            with pytest.raises(ConfigError, match=r"not a sound .* file of plain numbers"):
                build(self.settings(tmp_path, text))

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("file = 'x.npy'", "holds one array"),
            ("inputs = 'train.npz'\ntargets = 'y.npy'", "is an .npz archive"),
            ("inputs = 'x.npy'\ntargets = 'train.toml'", "cannot be read"),
            ("inputs = 'x.npy'\ntargets = 'run.toml'", "not a sound"),
            ("inputs = 'y.npy'\ntargets = 'y.npy'", "task and network"),
            ("file = 'other.npz'", "has no array 'inputs'"),
            ("inputs = 'cut.npy'\ntargets = 'y.npy'", "not a sound"),
            ("file = 'cut.npz'", "not a sound"),
            ("file = '.'", "cannot be read"),
        ],
    )
    def test_bad_files(self, tmp_path, data, text, line):
        np.savez(tmp_path / "other.npz", a=np.zeros(3))
        for name in ("x.npy", "train.npz"):
            content = (tmp_path / name).read_bytes()
            (tmp_path / name.replace("x.", "cut.").replace("train.", "cut.")).write_bytes(content[: len(content) // 2])
        with pytest.raises(ConfigError, match=line):
            build(self.settings(tmp_path, text))

    def test_starting_weights_from_a_file(self, tmp_path, data):
        settings = self.settings(tmp_path, "file = 'train.npz'")
        kernel, bias = np.ones((4, 2), np.float32), np.zeros(2, np.float32)
        arrays: Any = {"layer1.kernel": kernel, "layer1.bias": bias}
        np.savez(tmp_path / "start.npz", **arrays)
        table = settings.model_dump() | {"start": {"kind": "file", "file": str(tmp_path / "start.npz")}}
        experiment = build(config.Settings.model_validate(table))
        weights = experiment.starting_weights()
        assert np.array_equal(weights["layer1"]["kernel"], kernel)
        np.savez(tmp_path / "start.npz", kernel=kernel)
        with pytest.raises(
            ConfigError, match=r"start.file: .* must hold exactly the arrays \['layer1.bias', 'layer1.kernel'\]"
        ):
            experiment.starting_weights()
        build(experiment.settings, check_start=False)  # a run that has begun

    @pytest.mark.parametrize("leading", [(), (2, 2), (1, 2), (2, 1), (1, 1)])
    def test_starts_of_the_right_shapes(self, tmp_path, data, leading):
        experiment = build(self.starting_from(tmp_path, leading, leading))
        assert experiment.starting_weights()["layer1"]["kernel"].shape == (*leading, 4, 2)
        experiment.plan.init(experiment.starting_weights(), 0)

    @pytest.mark.parametrize(
        ("kernel", "bias", "dtype", "line"),
        [
            (None, None, float, "must hold exactly the arrays"),
            ((), (), int, "has dtype int32"),
            ((3, 2), (3, 2), float, r"layer1.bias has shape \(3, 2, 2\); this network's is \(2,\).*network.sizes"),
            ((2,), (2,), float, "layer1.bias has shape"),
            ((2, 2), (), float, "layer1.kernel has shape"),
            ((), (2, 2), float, "layer1.kernel has shape"),
            ((), 5, float, r"layer1.bias has shape \(5,\)"),
            (5, (), float, r"layer1.kernel has shape \(4, 5\)"),
        ],
    )
    def test_bad_starts_are_refused_before_anything_runs(self, tmp_path, data, kernel, bias, dtype, line):
        with pytest.raises(ConfigError, match=rf"^start\.file: .*{line}"):
            build(self.starting_from(tmp_path, kernel, bias, dtype))

    def starting_from(self, tmp_path, kernel, bias, dtype=np.float32):
        """Weights with these leading axes, or so many outputs, or none at all."""
        arrays: Any = {"other": np.zeros(3)}
        if kernel is not None:
            axes = [(*front, 2) if isinstance(front, tuple) else (front,) for front in (kernel, bias)]
            arrays = {
                "layer1.kernel": np.ones((*axes[0][:-1], 4, axes[0][-1]), dtype),
                "layer1.bias": np.ones(axes[1], dtype),
            }
        np.savez(tmp_path / "start.npz", **arrays)
        table = self.settings(tmp_path, "file = 'train.npz'").model_dump()
        return config.Settings.model_validate(table | {"start": {"kind": "file", "file": str(tmp_path / "start.npz")}})


def test_each_chain_starts_for_itself_and_adam_trains_it():
    text = TINY + "[start]\nnum_steps = 50\nbatch_size = 10\nlearning_rate = 0.01\ncandidates = 1\n"
    text = text.replace("sizes = [4, 2]", "sizes = [4, 2]\noutput_activation = 'identity'")
    trained = build(config.parse(text)).starting_weights()
    random = build(config.parse(text, ["start={kind='random'}"])).starting_weights()
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(trained)} == {(1, 2)}
    kernels = np.asarray(random["layer1"]["kernel"][0])
    assert not np.array_equal(kernels[0], kernels[1])
    experiment = build(config.parse(text))
    for chain in range(2):
        before, after = (jax.tree.map(lambda w, c=chain: w[0, c], start) for start in (random, trained))
        energy, batch = experiment.plan.sampler.potential.energy, experiment.plan.sampler.dataset.batch
        assert energy(after, batch) < energy(before, batch)


def test_starts_with_a_dead_class_are_passed_over():
    text = TINY + "[start]\nnum_steps = 50\nbatch_size = 10\nlearning_rate = 0.01\ncandidates = 1\nseed = 1\n"
    with pytest.warns(pl.DeadClassWarning, match="raise start.candidates"):
        build(config.parse(text, ["num_chains=6"])).starting_weights()
    build(
        config.parse(text, ["num_chains=3", "start.candidates=8"])
    ).starting_weights()  # a warning would fail the test
