"""Configurations, their dictionaries, and where noise comes from."""

import dataclasses
import json
from dataclasses import dataclass
from typing import ClassVar, Literal

import jaxtyping
import pytest
import torch
from attention_cases import CONFIGS, make_method, make_scores, posterior_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from babn import BamConfig, BeliefConfig, McDropoutConfig, MethodConfig, SoftmaxConfig
from babn.attention.method import AttentionMethod, ChainShape
from babn.attention.noise_source import NoiseSource
from babn.attention.softmax import PointMass
from babn.distributions.noise import noise_for
from babn.errors import BabnError, ConfigError

INFINITY, NAN = float("inf"), float("nan")
KINDS = [SoftmaxConfig, McDropoutConfig, BamConfig, BeliefConfig]
NUMBERS = {
    BeliefConfig: {"rho": None, "beta": None, "prior_hidden": 1},
    BeliefConfig.pairs: {"rho": 0, "sigma": 0, "beta": None, "max_length": 1, "prior_hidden": 1},
    BamConfig: dict.fromkeys(["k", "sigma", "alpha", "beta", "prior_sigma"]) | {"prior_hidden": 1},
    SoftmaxConfig: {"kl_weight": 0},
}
CHOICES = {
    BeliefConfig: ["noise_over", "noise", "kl_reduction"],
    BeliefConfig.pairs: ["scores", "upward", "noise", "kl_reduction"],
    BamConfig: ["family", "prior", "scores", "noise", "kl_reduction"],
    McDropoutConfig: ["kl_reduction"],
}


@pytest.fixture
def unchecked(monkeypatch):
    """Values reach the configuration as they do outside the tests, where nothing checks types."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


unchecked_types = pytest.mark.usefixtures("unchecked")


def cases(table):
    return [(kind, name) for kind, names in table.items() for name in names]


@unchecked_types
@pytest.mark.parametrize(("kind", "name"), cases(NUMBERS))
@pytest.mark.parametrize("value", [-1.0, NAN, INFINITY, -INFINITY])
def test_impossible_numbers_are_refused(kind, name, value):
    with pytest.raises(ConfigError, match=rf"^{name}={value}.*Give a (whole )?number"):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name"), cases(NUMBERS))
def test_bounds_are_where_they_should_be(kind, name):
    least = NUMBERS[kind][name]
    if least is None:
        with pytest.raises(ConfigError, match=rf"{name}=0.*greater than 0"):
            kind(**{name: 0.0})
    else:
        whole = name in ("max_length", "prior_hidden")
        assert getattr(kind(**{name: least if whole else float(least)}), name) == least


@unchecked_types
@pytest.mark.parametrize(("kind", "name"), cases(CHOICES))
@pytest.mark.parametrize("value", ["nonsense", None, 3])
def test_unknown_choices_are_refused(kind, name, value):
    with pytest.raises(ConfigError, match=rf"^{name}={value!r}.*Choose one of \["):
        kind(**{name: value})


def test_config_errors_are_also_value_errors():
    assert issubclass(ConfigError, ValueError) and issubclass(ConfigError, BabnError)


@unchecked_types
@pytest.mark.parametrize("name", ["max_length", "prior_hidden"])
def test_sizes_are_whole_numbers(name):
    with pytest.raises(ConfigError, match=f"{name}=2.5"):
        BeliefConfig.pairs(**{name: 2.5})


@unchecked_types
@pytest.mark.parametrize(("name", "value"), [("rho", "12"), ("kl_weight", None)])
def test_numbers_of_the_wrong_type_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value!r}"):
        BeliefConfig.pairs(**{name: value})


@unchecked_types
def test_whole_numbers_serve_as_numbers():
    config = BeliefConfig.pairs(rho=2, sigma=0, beta=1, kl_weight=1)
    assert posterior_of(make_method(config), make_scores()).kl().isfinite().all()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_dictionaries_bring_the_configuration_back(config):
    values = json.loads(json.dumps(config.to_dict()))
    assert values["rule"] == config.name
    restored = MethodConfig.from_dict(values)
    assert restored == config and type(restored) is type(config)


def test_dictionaries_are_not_changed_by_reading():
    values = BeliefConfig().to_dict()
    before = dict(values)
    MethodConfig.from_dict(values)
    assert values == before


def test_unknown_methods_and_fields_are_refused():
    with pytest.raises(ConfigError, match=r"method='nonsense'.*belief.*Import the module"):
        MethodConfig.from_dict({"rule": "nonsense"})
    with pytest.raises(ConfigError, match="method=None"):
        MethodConfig.from_dict({})
    with pytest.raises(ConfigError, match="BeliefConfig has no field colour, size"):
        MethodConfig.from_dict({**BeliefConfig().to_dict(), "size": 1, "colour": 2})


def test_dictionaries_without_noise_over_are_of_pairs():
    assert MethodConfig.from_dict({"rule": "belief"}) == BeliefConfig.pairs()
    values = {"rule": "belief", "rho": 5.0, "upward": "heads", "kl_weight": 0.5}
    expected = BeliefConfig.pairs(rho=5.0, upward="heads", kl_weight=0.5)
    assert MethodConfig.from_dict(values) == expected
    assert "noise_over" not in values
    assert MethodConfig.from_dict({**values, "noise_over": "pairs"}) == expected
    assert MethodConfig.from_dict({"rule": "belief", "noise_over": "keys"}) == BeliefConfig()


def test_bad_values_in_dictionaries_are_refused():
    with pytest.raises(ConfigError, match="rho=-1"):
        MethodConfig.from_dict({"rule": "belief", "rho": -1.0})


@pytest.mark.parametrize("kind", KINDS)
def test_configurations_cannot_be_changed_in_place(kind):
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().kl_weight = 2.0


@pytest.fixture
def registry():
    """Takes test methods off the list again."""
    before = dict(MethodConfig.known)
    yield MethodConfig.known
    MethodConfig.known.clear()
    MethodConfig.known.update(before)


@unchecked_types
def test_a_method_of_ones_own_is_registered_by_subclassing(registry):
    class Uniform(AttentionMethod):
        def forward(self, step, scores, upward):
            return PointMass(dataclasses.replace(scores, phi=torch.zeros_like(scores.phi)))

    @dataclass(frozen=True, kw_only=True)
    class UniformConfig(MethodConfig):
        name: ClassVar[str] = "uniform"
        flavour: Literal["plain", "fancy"] = "plain"

        def build(self, shape: ChainShape) -> Uniform:
            return Uniform()

    assert registry["uniform"] is UniformConfig
    config = MethodConfig.from_dict(UniformConfig(flavour="fancy").to_dict())
    assert config == UniformConfig(flavour="fancy")
    weights = posterior_of(make_method(config), make_scores()).mean_weights()
    torch.testing.assert_close(weights, torch.full_like(weights, 0.2))
    with pytest.raises(ConfigError, match="flavour='sour'"):
        UniformConfig(flavour="sour")
    with pytest.raises(ConfigError, match="kl_weight=-1"):
        UniformConfig(kl_weight=-1.0)


@unchecked_types
def test_choices_of_postponed_annotations_are_checked_too(registry):
    @dataclass(frozen=True, kw_only=True)
    class Postponed(SoftmaxConfig):
        name: ClassVar[str] = "postponed"
        flavour: "Literal['plain', 'fancy']" = "plain"

    with pytest.raises(ConfigError, match="flavour='sour'"):
        Postponed(flavour="sour")


def test_all_methods_of_the_package_are_known():
    assert {"softmax", "mc-dropout", "bam", "belief"} <= set(MethodConfig.known)


def test_a_variant_of_a_method_does_not_take_its_name(registry):
    @dataclass(frozen=True, kw_only=True)
    class Variant(BeliefConfig):
        extra: float = 1.0

    assert type(MethodConfig.from_dict(BeliefConfig().to_dict())) is BeliefConfig


NORMAL = noise_for("lognormal", "exact")


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=4), st.integers(1, 3))
def test_the_noise_of_a_block_depends_on_its_seed_alone(seeds, size):
    together = NoiseSource(seeds).noise(NORMAL, torch.empty(size * len(seeds), 3))
    alone = [NoiseSource([seed]).noise(NORMAL, torch.empty(size, 3)) for seed in seeds]
    assert torch.equal(together, torch.cat(alone))


CPU = torch.device("cpu")


def test_noise_of_compiled_models_is_uniform_and_depends_on_its_seed_alone():
    like = torch.empty(3 * 4, 5, 50, 60)
    both, alone = NoiseSource([7, 8, 7], CPU), NoiseSource([8], CPU)
    first, second = both.hashed(like), both.hashed(like)
    blocks = first.unflatten(0, (3, 4))
    assert torch.equal(blocks[1], alone.hashed(like[:4])) and torch.equal(blocks[0], blocks[2])
    for drawn in (blocks[:2], second):
        assert stats.kstest(drawn.flatten()[::7].numpy(), "uniform").pvalue > 1e-3
    count = blocks[0].numel()
    for one, other in [(blocks[0], blocks[1]), (first, second), (first[..., 1:], first[..., :-1])]:
        pair = torch.stack([one.flatten()[:count], other.flatten()[:count]])
        assert abs(pair.corrcoef()[0, 1]) < 4 * pair.shape[1] ** -0.5


@pytest.mark.parametrize("name", ["weibull", "lognormal"])
def test_mirrored_blocks_have_the_opposite_quantiles(name):
    like, noise = torch.empty(6, 4), noise_for(name, "exact")
    drawn = NoiseSource([5, 5, 6], CPU, mirrored=[False, True, False])
    first, mirror, other = drawn.uniform(like).chunk(3)
    torch.testing.assert_close(first + mirror, torch.ones(2, 4))
    assert (first - other).abs().min() > 1e-6
    again = NoiseSource([5], CPU, mirrored=[True])  # alone, as if samples took turns
    assert torch.equal(again.uniform(like[:2]), mirror)
    torch.testing.assert_close(again.noise(noise, like[:2]), noise.from_uniform(again_of(5, like)))


def again_of(seed, like):
    source = NoiseSource([seed], CPU, mirrored=[True])
    source.uniform(like[:2])
    return source.uniform(like[:2])


def test_seeds_of_mirrored_blocks_differ_for_kernels_without_mirrors():
    source = NoiseSource([5, 5], CPU, mirrored=[False, True])
    assert all(len(each.unique()) == 2 for each in source.draw_seeds(CPU, 3))


def test_later_draws_differ_and_can_be_repeated():
    like = torch.empty(2, 3)
    first, again = NoiseSource([1, 2]), NoiseSource([1, 2])
    one, two = first.noise(NORMAL, like), first.noise(NORMAL, like)
    assert not torch.equal(one, two)
    assert torch.equal(one, again.noise(NORMAL, like)) and torch.equal(
        two, again.noise(NORMAL, like)
    )


def test_without_seeds_noise_comes_from_the_global_generator():
    torch.manual_seed(3)
    one = NoiseSource().noise(NORMAL, torch.empty(4))
    torch.manual_seed(3)
    assert torch.equal(one, torch.randn(4))
