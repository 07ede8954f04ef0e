"""The TOML file: defaults, errors, overrides, the printed form, users' own data."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from pseudolangevin.runs import config
from pseudolangevin.runs.build import build
from pseudolangevin.runs.config import CHOICES, ConfigError
from pseudolangevin.samplers import SAMPLERS

REQUIRED = {
    "naive_pseudo_langevin": "time_step = 0.1",
    "full_batch_langevin": "time_step = 0.1",
    "hybrid_monte_carlo": "time_step = 0.1\nnum_leapfrog_steps = 5",
    "minibatch_hybrid_monte_carlo": "time_step = 0.1\nnum_leapfrog_steps = 5",
}
TINY = "[task]\nnum_train = 40\nnum_test = 8\ndimension = 4\nnum_classes = 2\n[network]\nsizes = [4, 2]\n"
MANY_CHAINS = "num_chains = 100000\n" + TINY.replace("= 40", "= 20000").replace("[4, 2]", "[4, 400, 2]")


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_has_its_own_settings_and_defaults(name):
    batch_size = "batch_size = 4" if name == "adam" else ""
    text = TINY + f'[sampler]\nname = "{name}"\n{REQUIRED.get(name, batch_size)}\n[start]\nkind = "random"\n'
    settings = config.parse(text)
    fields = {field.name: field for field in dataclasses.fields(SAMPLERS[name])}
    shown = type(settings.sampler).model_fields
    assert set(shown) - {"name"} <= set(fields)
    assert all(field.description for key, field in shown.items() if key != "name")
    for key in set(shown) - {"name", "batch_size"}:
        if fields[key].default is not dataclasses.MISSING:
            assert getattr(settings.sampler, key) == fields[key].default
    assert config.parse(config.to_toml(settings)) == settings
    assert build(settings).run.sampler.name == name


def test_printed_configuration_explains_itself_and_round_trips():
    text = config.to_toml(config.parse("", ['network.module="a \\"b\\"\\\\c\\u007f\\t.py"']))
    assert config.parse(text).network.module == 'a "b"\\c\x7f\t.py'
    entries = [line for line in text.splitlines() if " =" in line]
    assert any(line.startswith("# batch_size =") for line in entries)  # unset
    for section, choices in CHOICES.items():
        assert f"one of {', '.join(choices)}" in text.replace("\n# ", " "), section
    assert "one of relu, identity" in text
    assert set(text) - {chr(code) for code in range(128)} <= set("±²")


def test_weight_decay_by_tensor_and_the_interval_between_records():
    text = TINY + '[potential]\nweight_decay = { "*.bias" = 0, "*" = 5.0 }\n[start]\nkind = "random"'
    settings = config.parse(text)
    assert settings.potential.weight_decay == {"*.bias": 0.0, "*": 5.0}
    assert config.parse(config.to_toml(settings)) == settings
    experiment = build(settings)
    assert experiment.settings.record_every == experiment.run.record_interval(settings.num_steps, None)
    stiffness = experiment.run.sampler.potential.stiffness(experiment.weights_shape)
    assert stiffness == {"layer1": {"kernel": 0.5, "bias": 0.0}}
    with pytest.raises(ConfigError, match=r"no pattern for layer1\.kernel"):
        build(config.parse(text.replace('"*" = 5.0', '"layer1.bias" = 5.0')))


def test_overrides_and_the_default_network_of_the_paper():
    settings = config.parse("num_steps = 400", ["sampler.batch_size=1024", "temperatures=[1e-4]", "task.seed = 3"])
    assert (settings.sampler.batch_size, settings.temperatures, settings.task.seed) == (1024, [1e-4], 3)
    assert (settings.network.sizes, settings.task.num_train) == ([100, 50, 100, 10], 55_800)
    assert config.parse("", ["sampler.name=adam"]).temperatures is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[sampler]\nbatchsize = 3",
            r"sampler.batchsize = 3: not a key of name = 'balanced_langevin'; did you mean sampler.batch_size\?",
        ),
        ("batch_size = 4", r"^batch_size = 4: not a key; did you mean sampler.batch_size\?"),
        ("[network]\nqqq = 4", "network.qqq = 4: not a key; see `pseudolangevin sample --print-config`"),
        ("[sampler]\nname = 'adm'", r"sampler.name = 'adm': unknown; did you mean adam\?"),
        ("sampler = 3", "sampler = 3: must be a table"),
        ("num_steps = true", "num_steps = True: must be a valid integer; it is: steps of every chain"),
        ("temperatures = [1e-5, nan]", r"temperatures\[1\] = nan: must be a finite number"),
        ("[sampler]\nname = 'full_batch_langevin'", "sampler.time_step is missing"),
        ("[sampler]\nprecision = 'exact'", "sampler.precision = 'exact': must be 'default', 'high'"),
        ("[potential]\nweight_decay = nan", "potential.weight_decay = nan: must be a finite number of at least 0"),
        ("[task]\nkind = 'files'\ninputs = 'x.npy'", "task: give either file = .*, or inputs = "),
        ("x", "is not valid TOML"),
    ],
)
def test_errors_name_key_value_and_remedy(text, line):
    with pytest.raises(ConfigError, match=line) as caught:
        config.parse(text)
    assert len(caught.value.lines) == 1
    assert "\n" not in caught.value.lines[0]


def test_every_error_has_its_line_and_a_bad_override_is_named():
    with pytest.raises(ConfigError) as caught:
        config.parse("seed = -1\nnum_chains = 0\n[network]\nsizes = [3]")
    assert [line.split()[0] for line in caught.value.lines] == ["num_chains", "seed", "network.sizes"]
    for override in ("a b=3", "num_steps.x=3", "num_steps=", "temperatures=[1e-5", "num_steps", "=3"):
        with pytest.raises(ConfigError, match="--set"):
            config.parse("num_steps = 200", [override])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[task]\nnum_train = 2000000000\ndimension = 2000000000", "need about .* GB, and this machine has"),
        ("[network]\nsizes = [100, 2000000000, 10]", "network.sizes, num_chains and temperatures need about"),
        (MANY_CHAINS, r"num_chains.* need about .*; make them smaller"),
        (
            TINY + "[sampler]\nname = 'pseudo_langevin'\ntemperature_ratio = 0.7",
            "sampler: temperature_ratio = 0.7 exceeds",
        ),
        ("temperatures = [1e-5, -1.0]\n" + TINY, r"^temperatures = -1.0 is not positive; exp\(-U/T\) needs T > 0"),
        (
            "temperatures = [1.0]\n" + TINY + "[sampler]\nname = 'adam'\nbatch_size = 4",
            "adam has no temperature; leave it out",
        ),
        (
            TINY.replace("[4, 2]", "[5, 2]"),
            r"task and network: .*an input has shape \(4,\) and the network takes 5 components; change",
        ),
        (
            "num_steps = 150\nrecord_every = 200\n" + TINY,
            "^record_every = 200 must be .* and 150; record at least once",
        ),
        ("[task]\nkind = 'files'\nfile = '/no/such.npz'", "task: /no/such.npz cannot be read: No such file"),
    ],
)
def test_what_does_not_fit_together_is_rejected_before_anything_runs(text, line):
    with pytest.raises(ConfigError, match=line):
        build(config.parse(text + ("" if "[start]" in text else "\n[start]\nkind = 'random'")))


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 2, 8)
    np.savez(tmp_path / "train.npz", inputs=inputs, targets=targets, test_inputs=inputs, test_targets=targets)
    np.save(tmp_path / "x.npy", inputs)
    np.save(tmp_path / "x2.npy", inputs)
    np.save(tmp_path / "y.npy", targets)
    return inputs, targets


def build_of_files(folder, task: str):
    """Build a run of a configuration in this folder, whose data are files."""
    rest = "[network]\nsizes = [4, 2]\n[start]\nkind = 'random'\n"
    (folder / "run.toml").write_text(f"[task]\nkind = 'files'\n{task}\n{rest}")
    return build(config.read(folder / "run.toml")).run


ARRAYS = "inputs = 'x.npy'\ntargets = 'y.npy'"
TESTS = "test_inputs = 'x2.npy'\ntest_targets = 'y.npy'"


@pytest.mark.parametrize("text", ["file = 'train.npz'", f"{ARRAYS}\n{TESTS}"])
def test_files_are_relative_to_the_configuration(tmp_path, data, text):
    run = build_of_files(tmp_path, text)
    assert run.test is not None
    for dataset in (run.sampler.dataset, run.test):
        assert np.array_equal(dataset.inputs, data[0])
        assert np.array_equal(dataset.targets, data[1])


def test_pickles_are_never_read(tmp_path, data):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.savez(tmp_path / "train.npz", inputs=np.array([print], object), targets=np.zeros(1))
    for text in (ARRAYS, "file = 'train.npz'"):
        with pytest.raises(ConfigError, match=r"not a valid .* file of plain numbers"):
            build_of_files(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("file = 'x.npy'", "must have the arrays .*; it has one array"),
        ("inputs = 'train.npz'\ntargets = 'y.npy'", "is an .npz archive"),
        ("inputs = 'x.npy'\ntargets = 'no.npy'", "cannot be read"),
        ("inputs = 'y.npy'\ntargets = 'y.npy'", "task and network"),
        ("inputs = 'cut.npy'\ntargets = 'y.npy'", "not a valid"),
        ("file = 'cut.npz'", "not a valid"),
        ("file = '.'", "cannot be read"),
        ("file = 'half.npz'", "both or neither .*; it has inputs, targets, test_inputs"),
        (f"{ARRAYS}\n{TESTS.replace('x2', 'x')}", "test_inputs = .* is the training set"),
    ],
)
def test_bad_files(tmp_path, data, text, line):
    np.savez(tmp_path / "half.npz", inputs=data[0], targets=data[1], test_inputs=data[0][:5])
    for whole, part in (("x.npy", "cut.npy"), ("train.npz", "cut.npz")):
        content = (tmp_path / whole).read_bytes()
        (tmp_path / part).write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=line):
        build_of_files(tmp_path, text)


def test_each_chain_starts_for_itself_and_adam_trains_it():
    text = TINY.replace("sizes = [4, 2]", "sizes = [4, 2]\noutput_activation = 'identity'")
    text += "[start]\nnum_steps = 50\nbatch_size = 10\nlearning_rate = 0.01\ncandidates = 1\n"
    experiment = build(config.parse(text))
    trained = experiment.starting_weights()
    random = build(config.parse(text, ["start={kind='random'}"])).starting_weights()
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(trained)} == {(1, 2)}
    kernels = np.asarray(random["layer1"]["kernel"][0])
    assert not np.array_equal(kernels[0], kernels[1])
    for chain in range(2):
        before, after = (jax.tree.map(lambda w, c=chain: w[0, c], start) for start in (random, trained))
        energy, batch = experiment.run.sampler.potential.energy, experiment.run.sampler.dataset.batch
        assert energy(after, batch) < energy(before, batch)
