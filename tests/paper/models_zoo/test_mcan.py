"""MCAN against a forward pass written out by itself, and its conversion."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from visual_cases import METHODS, REGIONS, SIZES, WORDS, batch, converted, labels, model

import babn
from babn.errors import ConfigError
from babn_paper.models import McanConfig, McanForQuestionAnswering, WordVectors

pytestmark = pytest.mark.thorough

CHAINS = [
    "network.question.*.self_attention",
    "network.image.*.self_attention",
    "network.image.*.cross_attention",
]


def attended(weights: dict[str, Tensor], x: Tensor, y: Tensor, heads: int = 2) -> Tensor:
    """Attention from one sequence to another, head by head, without any padding."""
    q, k, v = (
        each @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        for name, each in (("query", x), ("key", y), ("value", y))
    )
    size = q.shape[-1] // heads
    parts = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = q[:, part] @ k[:, part].T / math.sqrt(size)
        parts.append(scores.softmax(-1) @ v[:, part])
    return torch.cat(parts, -1) @ weights["output.weight"].T + weights["output.bias"]


def inside(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}


def mlp(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    hidden = F.relu(x @ weights["0.weight"].T + weights["0.bias"])
    return hidden @ weights["3.weight"].T + weights["3.bias"]


def normed(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * weights["weight"] + weights["bias"]


def lstm(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    hidden = cell = torch.zeros(weights["weight_hh_l0"].shape[1])
    states = []
    for word in x:
        gates = weights["weight_ih_l0"] @ word + weights["bias_ih_l0"]
        gates = gates + weights["weight_hh_l0"] @ hidden + weights["bias_hh_l0"]
        i, f, g, o = gates.chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        states.append(hidden)
    return torch.stack(states)


def flattened(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    counts = mlp(inside(weights, "scores"), x).softmax(0)
    return (counts * x).sum(0) @ weights["merge.weight"].T + weights["merge.bias"]


def by_hand(net: Any, ids: Tensor, regions: Tensor) -> Tensor:
    """Logits of one question about one image."""
    weights = {name: w.detach() for name, w in net.state_dict().items()}
    own = inside(weights, "network")

    def added(prefix: str, number: int, x: Tensor, found: Tensor) -> Tensor:
        return normed(inside(own, f"{prefix}.residuals.{number}.norm"), x + found)

    y = lstm(inside(own, "reader"), own["embedding.weight"][ids])
    for layer in range(2):
        at = f"question.{layer}"
        y = added(at, 0, y, attended(inside(own, f"{at}.self_attention"), y, y))
        y = added(at, 1, y, mlp(inside(own, f"{at}.feed_forward"), y))
    x = regions @ own["projection.weight"].T + own["projection.bias"]
    for layer in range(2):
        at = f"image.{layer}"
        x = added(at, 0, x, attended(inside(own, f"{at}.self_attention"), x, x))
        x = added(at, 1, x, attended(inside(own, f"{at}.cross_attention"), x, y))
        x = added(at, 2, x, mlp(inside(own, f"{at}.feed_forward"), x))
    fused = flattened(inside(own, "flatten_image"), x)
    fused = normed(inside(own, "norm"), fused + flattened(inside(own, "flatten_question"), y))
    return weights["classifier.weight"] @ fused + weights["classifier.bias"]


def test_logits_are_those_written_out() -> None:
    net, given = model(), batch()
    expected = torch.stack(
        [
            by_hand(net, given["input_ids"][i, : WORDS[i]], given["regions"][i, : REGIONS[i]])
            for i in range(3)
        ]
    )
    torch.testing.assert_close(net(**given).logits, expected, rtol=1e-4, atol=1e-5)


def test_the_loss_is_the_likelihood_of_soft_answers() -> None:
    net, given = model(), batch()
    output = net(**given, labels=labels())
    p = output.logits.sigmoid().double()
    each = labels() * p.log() + (1 - labels()) * (1 - p).log()
    torch.testing.assert_close(output.loss.double(), -each.sum(-1).mean(), rtol=1e-4, atol=1e-5)


def test_the_defaults_are_the_papers() -> None:
    config = McanConfig()
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (4, 512, 8)
    assert (config.region_size, config.fused_size, config.num_labels) == (2048, 1024, 3129)


def test_each_kind_of_attention_is_a_chain_of_its_own() -> None:
    found = babn.inspect(model())

    assert [chain.name for chain in found.chains] == CHAINS
    assert [len(chain.calls) for chain in found.chains] == [2, 2, 2]
    assert [chain.calls[0].crossed for chain in found.chains] == [False, False, True]
    assert not found.skipped


def test_chains_stay_apart_where_there_are_as_many_words_as_regions() -> None:
    given = {"input_ids": torch.ones(1, 4, dtype=torch.long), "regions": torch.randn(1, 4, 6)}
    found = babn.inspect(model(), given)

    assert [chain.name for chain in found.chains] == CHAINS
    assert [chain.calls[0].crossed for chain in found.chains] == [False, False, True]


def test_softmax_changes_nothing() -> None:
    net, given = model(), batch()
    before = net(**given).logits
    after = babn.convert(net, babn.SoftmaxConfig())(**given).logits

    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    assert torch.equal(babn.revert(net)(**given).logits, before)


@pytest.mark.parametrize("method", METHODS)
def test_padding_changes_nothing(method: str) -> None:
    """Also not in the KL, of which a batch has the mean over its examples."""
    net = converted(method)
    singles = [batch([i]) for i in range(3)]
    logits, kls = [], []
    for single in singles:
        logits.append(net(**single).logits)
        kls.append(babn.kl_per_layer(net))
    means = {name: torch.stack([each[name] for each in kls]).mean() for name in kls[0]}

    for given in (batch(), batch(extra=3)):
        torch.testing.assert_close(net(**given).logits, torch.cat(logits), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(babn.kl_per_layer(net), means, rtol=1e-4, atol=1e-6)
    assert len(means) == (0 if method == "softmax" else 6)


@pytest.mark.parametrize("method", METHODS)
def test_masked_keys_get_no_weight(method: str) -> None:
    net = converted(method)
    for each in babn.attention_maps(net, batch(extra=2)):
        lengths = REGIONS if "image" in each.name and "self" in each.name else WORDS
        beyond = torch.arange(each.mean.shape[-1]) >= torch.tensor(lengths)[:, None]
        assert (each.mean.amax(2).transpose(1, 2)[beyond] == 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_every_parameter(method: str) -> None:
    torch.manual_seed(0)
    net = converted(method).train()
    net(**batch(), labels=labels()).loss.backward()

    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # The scores of a softmax do not change with what is added to all of them.
        if not name.endswith(("scores.3.bias", "key.bias")):
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("method", METHODS)
def test_saved_and_loaded(method: str, tmp_path: Path) -> None:
    net, given = converted(method), batch()
    net.save_pretrained(tmp_path / "whole")
    loaded = babn.load(tmp_path / "whole").eval()

    assert type(loaded) is McanForQuestionAnswering
    assert torch.equal(loaded(**given).logits, net(**given).logits)


@pytest.mark.parametrize("method", ["bam", "belief", "heads"])
def test_samples_are_probabilities_of_each_answer(method: str) -> None:
    found = babn.predict(converted(method), batch(), 4)

    assert found.activation == "sigmoid"
    assert found.sample_probs.shape == (4, 3, 4)
    assert found.sample_probs.std(0).max() > 0


def test_raw_images_become_a_grid_of_standardised_regions() -> None:
    net = model(stem_channels=[4, 6], image_size=[12, 8])
    pixels = torch.randn(2, 3, 12, 8)
    features = net.network.stem(pixels)

    assert net.config.grid == (3, 2)
    assert features.shape == (2, 6, 6)
    torch.testing.assert_close(features.mean(-1), torch.zeros(2, 6), rtol=0, atol=1e-5)
    torch.testing.assert_close(features.var(-1, correction=0), torch.ones(2, 6), rtol=0, atol=1e-2)
    ids = torch.ones(2, 3, dtype=torch.long)
    whole = net(ids, pixel_values=pixels).logits
    noisy = net(ids, pixel_values=pixels, feature_noise=torch.randn(2, 6, 6)).logits
    assert not torch.allclose(whole, noisy)
    with pytest.raises(ConfigError, match="pixel_values=None"):
        net(ids, regions=torch.randn(2, 6, 6))
    assert [chain.name for chain in babn.inspect(net).chains] == CHAINS


def test_noise_is_added_to_given_features() -> None:
    net, given = model(), batch()
    noise = torch.randn_like(given["regions"])
    moved = given | {"regions": given["regions"] + noise}

    assert torch.equal(net(**given, feature_noise=noise).logits, net(**moved).logits)
    longer = torch.cat([noise, torch.ones_like(noise)], 1)  # for more regions than there are
    assert torch.equal(net(**given, feature_noise=longer).logits, net(**moved).logits)


def test_vectors_from_a_file() -> None:
    net = model()
    vectors = WordVectors(("cat", "dog"), np.arange(10, dtype=np.float32).reshape(2, 5))
    vocabulary = {f"w{i}": i for i in range(30)} | {"dog": 7}
    del vocabulary["w7"]

    assert net.set_vectors(vectors, vocabulary) == 1
    torch.testing.assert_close(net.network.embedding.weight[7], torch.arange(5, 10.0))


def test_sizes_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_attention_heads=3"):
        McanConfig(**SIZES | {"num_attention_heads": 3})
    with pytest.raises(ConfigError, match="must both be"):
        McanConfig(stem_channels=[8])


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_close_and_trains(method: str) -> None:
    model = converted(method).eval()
    full = model(**batch()).logits
    with torch.autocast("cpu", torch.bfloat16):
        half = model(**batch())
        loss = model.train()(**batch(), labels=labels()).loss
    loss.backward()
    torch.testing.assert_close(half.logits.float(), full, atol=0.05, rtol=0.05)
    assert model.network.reader.weight_ih_l0.grad.abs().sum() > 0
