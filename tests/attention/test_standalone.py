"""Bayesian attention as a module, against PyTorch's own attention."""

import pytest
import torch
import torch.nn.functional as F
from attention_cases import CONFIGS, DIM, HEADS, gradients, padding

from babn import BamConfig, BayesianAttention, BeliefConfig, McDropoutConfig, SoftmaxConfig
from babn.errors import KeyLengthError

STILL = BeliefConfig.pairs(sigma=0.0, max_length=16)
MEANS = {
    "softmax": SoftmaxConfig(),
    "mc-dropout": McDropoutConfig(),
    "bam": BamConfig(),
    "belief": STILL,
    "belief-raw": BeliefConfig.pairs(sigma=0.0, scores="raw", noise="exact", upward="heads"),
}
MASKS = {
    "none": {},
    "boolean": {"mask": padding(5, 3, keys=5)},
    "left": {"mask": padding(5, 3, keys=5, left=True)},
    "additive": {"mask": torch.zeros(2, 1, 1, 5).masked_fill(~padding(5, 3, keys=5), -torch.inf)},
    "lowest": {"mask": torch.zeros(2, 1, 1, 5).masked_fill(~padding(5, 3, keys=5), -1e4)},
    "bias": {"mask": torch.linspace(-3, 3, 5).expand(5, 5)},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.1},
}


def make_inputs(dtype=torch.float32, queries=5, keys=5):
    generator = torch.Generator().manual_seed(0)
    sizes = [(2, HEADS, queries, DIM), (2, HEADS, keys, DIM), (2, HEADS, keys, 4)]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in sizes]


def make_layer(config, heads=HEADS):
    torch.manual_seed(0)
    return BayesianAttention(heads, DIM, config)


@pytest.mark.parametrize("config", MEANS.values(), ids=MEANS)
@pytest.mark.parametrize("arguments", MASKS.values(), ids=MASKS)
def test_evaluation_is_pytorchs_attention(config, arguments):
    inputs = make_inputs()
    output, info = make_layer(config).eval()(*inputs, **arguments)
    renamed = {"attn_mask" if k == "mask" else k: v for k, v in arguments.items()}
    expected = F.scaled_dot_product_attention(*inputs, **renamed)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(info.weights.sum(-1), torch.ones(2, HEADS, 5))


def test_masks_combine_with_causality():
    inputs, mask = make_inputs(), padding(5, 3, keys=5)
    output, _ = make_layer(STILL).eval()(*inputs, mask=mask, is_causal=True)
    both = mask & torch.ones(5, 5, dtype=torch.bool).tril()
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=both)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


def test_grouped_queries():
    query = torch.randn(2, 4, 5, DIM)
    _, key, value = make_inputs()
    output, _ = make_layer(STILL, heads=4).eval()(query, key, value)
    expected = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["mc-dropout", "bam-weibull", "bam-lognormal", "belief-keys"])
def test_samples_in_training_and_means_in_evaluation(name):
    inputs, layer = make_inputs(), make_layer(CONFIGS[name])
    mean, _ = layer.eval()(*inputs)
    assert torch.equal(layer(*inputs)[0], mean)
    assert not torch.equal(layer(*inputs, sample=True)[0], mean)
    layer.train()
    assert not torch.equal(layer(*inputs)[0], layer(*inputs)[0])
    assert torch.equal(layer(*inputs, sample=False)[0], mean)


def test_samples_are_reproducible_by_the_global_seed():
    inputs, layer = make_inputs(), make_layer(BeliefConfig())
    outputs = []
    for _ in range(2):
        torch.manual_seed(5)
        outputs.append(layer(*inputs)[0])
    assert torch.equal(*outputs)


def test_output_is_weights_times_values():
    inputs = make_inputs()
    output, info = make_layer(BeliefConfig())(*inputs)
    torch.testing.assert_close(output, torch.einsum("bhqk,bhkd->bhqd", info.weights, inputs[2]))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_divergence_is_reduced_over_the_pairs_that_take_part(reduction):
    mask = padding(5, 3, keys=5)
    _, info = make_layer(BeliefConfig.pairs(kl_reduction=reduction))(*make_inputs(), mask=mask)
    pairs = info.posterior.kl()[mask.expand(2, HEADS, 5, 5)]
    expected = pairs.mean() if reduction == "mean" else pairs.sum() / 2
    torch.testing.assert_close(info.kl, expected)


@pytest.mark.parametrize("config", [SoftmaxConfig(), McDropoutConfig()])
def test_methods_without_a_prior_have_no_kl(config):
    assert make_layer(config)(*make_inputs())[1].kl.item() == 0


@pytest.mark.parametrize("upward", ["keys", "heads"])
def test_every_parameter_gets_a_gradient(upward):
    layer = make_layer(BeliefConfig.pairs(sigma=0.1, upward=upward, max_length=5))
    output, info = layer(*make_inputs())
    for name, gradient in gradients(output.square().sum() + info.kl, layer).items():
        assert gradient is not None and gradient.isfinite().all(), name
        assert gradient.any() or "outer.bias" in name, name


def test_a_query_without_keys_gets_zeros_and_finite_gradients():
    mask = padding(5, 0, keys=5)
    inputs, layer = make_inputs(), make_layer(BeliefConfig.pairs(sigma=0.1))
    output, info = layer(*inputs, mask=mask)
    assert not output[1].any() and info.kl.isfinite()
    leaves = [*inputs, *layer.parameters()]
    for gradient in torch.autograd.grad(output.square().sum() + info.kl, leaves):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs(dtype):
    inputs, layer = make_inputs(dtype), make_layer(STILL).eval()
    output, info = layer(*inputs)
    assert output.dtype == dtype and info.weights.dtype == info.kl.dtype == torch.float32
    _, expected = layer(*(x.float() for x in inputs))
    torch.testing.assert_close(info.weights, expected.weights)
    torch.testing.assert_close(info.kl, expected.kl)


def test_autocast_changes_neither_weights_nor_divergence():
    inputs, layer = make_inputs(), make_layer(BeliefConfig.pairs(sigma=0.1)).eval()
    _, expected = layer(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        _, info = layer(*inputs)
    assert torch.equal(info.weights, expected.weights) and torch.equal(info.kl, expected.kl)


def test_double_precision_is_kept():
    output, info = make_layer(STILL).double()(*make_inputs(torch.float64))
    assert output.dtype == info.kl.dtype == info.weights.dtype == torch.float64


def test_more_keys_than_max_length_are_refused():
    with pytest.raises(KeyLengthError, match=r"17 keys.*max_length=16"):
        make_layer(STILL)(*make_inputs(queries=2, keys=17))


def test_other_numbers_of_queries_than_keys():
    inputs = make_inputs(queries=2, keys=7)
    output, _ = make_layer(STILL).eval()(*inputs)
    expected = F.scaled_dot_product_attention(*inputs)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "config", [BeliefConfig.paper(), BeliefConfig.released_settings(), BeliefConfig()]
)
def test_large_scores_keep_the_loss_finite(config):
    query, key, value = make_inputs()
    output, info = make_layer(config)(query, key, value, scale=100.0)
    loss = output.square().sum() + info.kl
    assert loss.isfinite()
    assert all(x.isfinite().all() for x in torch.autograd.grad(loss, [query, key]))


def test_the_default_method_is_belief():
    assert BayesianAttention(HEADS, DIM).config == BeliefConfig()
