"""Samples of a converted model's output."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_prediction import DOUBTFUL, TorchClassifier, bart, bert, converted, words
from torch import Tensor, nn
from transformers import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForTokenClassification,
)

import babn
from babn.errors import NonFiniteError, NotConvertedError, SamplesError


def flags(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def samples_of(model: nn.Module, batch: Any, samples: int = 6, **settings: Any) -> Tensor:
    return babn.predict(model, batch, samples, **settings).sample_logits


def test_shapes_and_sums() -> None:
    found = babn.predict(converted(), words(), samples=6)
    assert found.sample_logits.shape == found.sample_probs.shape == (6, 4, 3)
    assert found.probs.shape == found.std.shape == (4, 3)
    assert found.entropy.shape == found.p_value.shape == (4,)
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(4))
    torch.testing.assert_close(found.probs, found.sample_probs.mean(0))
    assert found.std.max() > 1e-3


def test_ten_samples_by_default() -> None:
    assert len(babn.predict(converted(), words()).sample_logits) == 10


def test_same_seed_same_samples() -> None:
    model = converted()
    assert torch.equal(samples_of(model, words(), seed=3), samples_of(model, words(), seed=3))


def test_another_seed_other_samples() -> None:
    model = converted()
    zero, one = samples_of(model, words(), seed=0), samples_of(model, words(), seed=1)
    assert all((a - b).abs().max() > 1e-3 for a in zero for b in one)


def test_samples_and_examples_have_noise_of_their_own() -> None:
    """Five copies of one text: no two of their outputs are alike, in any sample."""
    batch = {name: value[:1].repeat(5, 1) for name, value in words().items()}
    answers = samples_of(converted(), batch, samples=4).flatten(0, 1)
    gaps = (answers[:, None] - answers).abs().amax(-1) + torch.eye(20)
    assert gaps.min() > 1e-4


def test_without_a_seed_the_global_state_is_used() -> None:
    model = converted()
    torch.manual_seed(5)
    first, second = (samples_of(model, words(), seed=None) for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(samples_of(model, words(), seed=None), first)
    assert not torch.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize("memory", [0.0, 3e-5, 1e-3, 1e9])
def test_memory_changes_passes_and_not_samples(memory: float) -> None:
    model = converted()
    expected = samples_of(model, words(), samples=7)
    found = samples_of(model, words(), samples=7, memory=memory)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_outputs_may_be_overwritten_by_the_next_pass() -> None:
    """As those of CUDA graphs are."""
    model, buffer = converted(), torch.empty(4, 3)
    expected = samples_of(model, words(), samples=3)
    found = samples_of(
        model, words(), 3, memory=0.0, output=lambda output: buffer.copy_(output.logits)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # torch.compile warns
def test_compiled_models_with_cuda_graphs_draw_the_same_samples() -> None:
    device = torch.device("cuda")
    model, batch = converted().to(device), {name: x.to(device) for name, x in words().items()}
    expected = samples_of(torch.compile(model), batch, samples=5, memory=0.0)
    torch._dynamo.reset()
    compiled = torch.compile(model, mode="reduce-overhead")
    for _ in range(4):
        found = samples_of(compiled, batch, samples=5, memory=0.0)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    with torch.profiler.profile() as seen:
        samples_of(compiled, batch, samples=5, memory=0.0)
    assert "cudaGraphLaunch" in {event.key for event in seen.key_averages()}
    assert ((found[0] - found[2]).abs() > 1e-4).any()


def test_memory_decides_how_many_samples_share_a_pass() -> None:
    model, rows = converted(), []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    pairs = 2 * 4 * 4 * 7 * 7  # layers, rows, heads, queries, keys
    samples_of(model, words(), samples=8, memory=3.5 * pairs * 48 / 2**30)
    assert rows == [4, 12, 12, 4]


@pytest.mark.parametrize(
    "config",
    [
        babn.BeliefConfig(rho=20.0),
        pytest.param(babn.BamConfig(k=20.0), marks=pytest.mark.thorough),
    ],
)
def test_mirrored_samples_reduce_the_error_of_means(config: babn.MethodConfig) -> None:
    """And leave the spread of the samples as it is."""
    model, batch = converted(config), words()

    def means(antithetic: bool) -> Tensor:
        drawn = [babn.predict(model, batch, 4, seed, antithetic=antithetic) for seed in range(30)]
        spread.append(torch.cat([each.sample_probs for each in drawn]).std(0).mean())
        return torch.stack([each.probs for each in drawn])

    spread: list[Tensor] = []
    errors = [means(antithetic).var(0).mean() for antithetic in (True, False)]
    assert errors[0] < 0.6 * errors[1]
    assert 0.7 < spread[0] / spread[1] < 1.4  # whose estimates have heavy tails


def test_more_samples_begin_with_the_fewer() -> None:
    model = converted()
    few, many = samples_of(model, words(), samples=3), samples_of(model, words(), samples=9)
    torch.testing.assert_close(many[:3], few, rtol=0, atol=1e-5)


def test_seeded_prediction_leaves_no_trace() -> None:
    model = converted().train()
    model.classifier.eval()
    modes, state, batch = flags(model), torch.get_rng_state(), words()
    babn.predict(model, {**batch, "labels": torch.zeros(4, dtype=torch.long)}, samples=3)
    assert flags(model) == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert model.babn.last_kl is None


def test_modes_are_restored_after_an_error() -> None:
    model = converted().train()
    with pytest.raises(ZeroDivisionError):
        babn.predict(model, words(), output=lambda _: 1 / 0)
    assert all(flags(model))


@pytest.mark.thorough
def test_batched_samples_have_the_statistics_of_single_ones() -> None:
    model, batch, count = converted(num_hidden_layers=1), words(2, 5), 400
    batched = samples_of(model, batch, samples=count)
    with torch.no_grad(), babn.sampling(model):
        single = torch.stack([model(**batch).logits for _ in range(count)])
    error = ((batched.var(0) + single.var(0)) / count).sqrt()
    assert ((batched.mean(0) - single.mean(0)).abs() < 5 * error).all()
    ratio = batched.var(0) / single.var(0)
    assert ((ratio > 0.6) & (ratio < 1.6)).all()


def test_softmax_predicts_the_same_each_time() -> None:
    model = converted(babn.SoftmaxConfig())
    found = babn.predict(model, words(), samples=5)
    expected = model(**words()).logits.expand(5, 4, 3)
    torch.testing.assert_close(found.sample_logits, expected, rtol=0, atol=1e-5)
    assert found.mutual_information.max() < 1e-6


def test_dropped_attention_weights_differ_between_samples() -> None:
    assert babn.predict(converted(babn.McDropoutConfig(p=0.3)), words()).std.max() > 1e-3


def test_dropout_modules_are_active_on_request() -> None:
    model = converted(babn.SoftmaxConfig())
    assert babn.predict(model, words(), dropout=True).std.max() > 1e-3
    assert not any(flags(model))
    assert babn.predict(model, words()).std.max() < 1e-5


def test_functional_dropout_is_active_on_request() -> None:
    """BART has no dropout modules; it calls `nn.functional.dropout`."""
    model = babn.convert(bart(), babn.SoftmaxConfig())
    batch = {**words(), "decoder_input_ids": words()["input_ids"][:, :3]}
    assert babn.predict(model, batch, samples=4, dropout=True).std.max() > 1e-3


def test_seed_makes_dropout_reproducible_too() -> None:
    model = converted()
    state = torch.get_rng_state()
    first, second = (samples_of(model, words(), seed=0, dropout=True) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_labels_are_ignored_and_stay_in_the_batch() -> None:
    model, labels = converted(), torch.tensor([0, 1, 2, 0])
    batch = {**words(), "labels": labels}
    assert torch.equal(samples_of(model, batch), samples_of(model, words()))
    assert batch["labels"] is labels


def test_token_classification() -> None:
    model = babn.convert(bert(BertForTokenClassification), DOUBTFUL)
    found = babn.predict(model, words(), samples=5)
    assert found.sample_probs.shape == (5, 4, 7, 3)
    assert found.entropy.shape == found.p_value.shape == (4, 7)


def test_multiple_choice() -> None:
    batch = {name: value.reshape(2, 2, 7) for name, value in words().items()}
    model = babn.convert(bert(BertForMultipleChoice), DOUBTFUL, example_inputs=batch)
    found = babn.predict(model, batch, samples=5, memory=0.0)
    assert found.sample_probs.shape == (5, 2, 2)
    together = babn.predict(model, batch, samples=5)
    torch.testing.assert_close(together.probs, found.probs, rtol=0, atol=1e-5)


def test_regression_gives_mean_and_spread_of_values() -> None:
    found = babn.predict(converted(num_labels=1), words())
    assert found.activation == "identity"
    assert torch.equal(found.sample_probs, found.sample_logits)
    torch.testing.assert_close(found.probs, found.sample_logits.mean(0))
    torch.testing.assert_close(found.std, found.sample_logits.std(0))


def test_several_labels_at_once() -> None:
    found = babn.predict(converted(problem_type="multi_label_classification"), words())
    assert found.activation == "sigmoid"
    torch.testing.assert_close(found.probs, found.sample_logits.sigmoid().mean(0))


@pytest.mark.parametrize("part", ["start_logits", "end_logits"])
def test_question_answering_by_output(part: str) -> None:
    model = babn.convert(bert(BertForQuestionAnswering, num_labels=2), DOUBTFUL)
    found = babn.predict(model, words(), samples=5, output=lambda o: getattr(o, part))
    assert found.sample_probs.shape == (5, 4, 7)
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(4))


def test_question_answering_without_output_takes_the_first_logits() -> None:
    model = babn.convert(bert(BertForQuestionAnswering, num_labels=2), DOUBTFUL)
    expected = samples_of(model, words(), output=lambda o: o.start_logits)
    assert torch.equal(samples_of(model, words()), expected)


def test_answer_positions_are_ignored_like_labels() -> None:
    model = babn.convert(bert(BertForQuestionAnswering, num_labels=2), DOUBTFUL)
    places = {
        name: torch.zeros(4, dtype=torch.long) for name in ("start_positions", "end_positions")
    }
    assert torch.equal(samples_of(model, words() | places), samples_of(model, words()))


@pytest.mark.parametrize("as_tuple", [False, True], ids=["tensor", "tuple"])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"x": x}])
def test_plain_torch_models(as_tuple: bool, wrap: Callable[[Tensor], Any]) -> None:
    x = torch.randn(4, 5, 16)
    model = babn.convert(TorchClassifier(as_tuple), DOUBTFUL, example_inputs=x)
    found = babn.predict(model, wrap(x), samples=5)
    assert found.sample_probs.shape == (5, 4, 3)
    assert found.std.max() > 1e-4


def test_tuple_output_of_a_transformers_model() -> None:
    model = converted()
    tuples = samples_of(model, {**words(), "return_dict": False})
    assert torch.equal(tuples, samples_of(model, words()))


@pytest.mark.parametrize("samples", [0, -1, 2.5, True, "3", None])
def test_impossible_numbers_of_samples_are_refused(samples: Any, as_installed: None) -> None:
    with pytest.raises(SamplesError, match=f"samples={samples!r}"):
        babn.predict(converted(), words(), samples=samples)


@pytest.mark.parametrize("batch", [{}, {"input_ids": [[1, 2, 3]]}, ()], ids=str)
def test_a_batch_without_tensors_is_refused(batch: Any) -> None:
    with pytest.raises(SamplesError, match=r"no (tensor|batches)"):
        babn.predict(converted(), batch)


def test_an_output_that_is_not_one_row_per_example_is_refused() -> None:
    with pytest.raises(SamplesError, match="output="):
        babn.predict(converted(), words(), output=lambda o: o.logits.sum(0))


def test_a_model_that_is_not_converted_is_refused() -> None:
    with pytest.raises(NotConvertedError, match="not converted"):
        babn.predict(bert(), words())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_parameters_that_are_not_numbers_are_refused(bad: float) -> None:
    model = converted()
    next(model.babn.parameters()).data[0] = bad
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        babn.predict(model, words())


def test_inputs_on_another_device_are_refused() -> None:
    model = converted()
    with pytest.raises(RuntimeError, match="meta"):
        babn.predict(model, {name: value.to("meta") for name, value in words().items()})
    assert babn.predict(model, words(), samples=2).probs.isfinite().all()
