"""Streaming metrics agree with the functions, whatever the batches."""

import inspect
import pickle

import pytest
import torch
from streaming_cases import CASES, EXAMPLES, Case, probabilities, samples
from torch import nn
from torchmetrics import Metric, MetricCollection

from babn import Prediction, metrics
from babn.errors import MetricInputError
from babn.metrics import streaming

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
PARTS = [(0, 7), (7, 8), (8, 40), (40, EXAMPLES)]


def fed(case: Case) -> Metric:
    """A metric that has seen everything, in parts."""
    metric = case.make()
    for start, stop in PARTS:
        metric.update(*case.part(start, stop))
    return metric


BASES = {
    "DecisionMean",
    "Exact",
    "Gathered",
    "Mean",
    "OutOfDistribution",
}
"""Classes that metrics derive from."""


def test_every_metric_is_tried() -> None:
    public = {
        name
        for name, value in vars(streaming).items()
        if inspect.isclass(value)
        and issubclass(value, Metric)
        and value.__module__ == streaming.__name__
    }
    assert public - BASES == set(CASES)


@every_case
def test_one_update_gives_the_number_of_the_function(case: Case) -> None:
    metric = case.make()
    metric.update(*case.data())
    assert metric.compute().item() == pytest.approx(case.expected(), rel=1e-12)
    assert metric.compute().dtype == torch.float64


@every_case
def test_expected_values_are_not_trivial(case: Case) -> None:
    """No case has an expected value of 0 or 1."""
    assert case.expected() not in (0, 1)


@every_case
def test_parts_give_the_number_of_the_whole(case: Case) -> None:
    assert fed(case).compute().item() == pytest.approx(case.expected(), rel=1e-12)


@every_case
def test_a_call_gives_the_number_of_its_batch(case: Case) -> None:
    metric = case.make()
    for start, stop in [(0, 20), (20, EXAMPLES)]:
        data = case.part(start, stop)
        assert metric(*data).item() == pytest.approx(float(case.function(*data)), rel=1e-12)
    assert metric.compute().item() == pytest.approx(case.expected(), rel=1e-12)


@every_case
def test_reset_forgets_everything(case: Case) -> None:
    metric = fed(case)
    metric.reset()
    metric.update(*case.part(0, 30))
    expected = float(case.function(*case.part(0, 30)))
    assert metric.compute().item() == pytest.approx(expected, rel=1e-12)


@every_case
def test_merged_metrics_have_seen_both_parts(case: Case) -> None:
    first, second = case.make(), case.make()
    first.update(*case.part(0, 20))
    second.update(*case.part(20, EXAMPLES))
    first.merge_state(second)
    assert first.compute().item() == pytest.approx(case.expected(), rel=1e-12)


@every_case
def test_state_moves_with_the_metric(case: Case) -> None:
    metric = fed(case).to("meta")
    states = [state for value in metric.metric_state.values() for state in as_list(value)]
    assert states
    assert {state.device.type for state in states} == {metric.device.type} == {"meta"}


def as_list(state: torch.Tensor | list[torch.Tensor]) -> list[torch.Tensor]:
    return [state] if isinstance(state, torch.Tensor) else state


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_state_stays_exact_in_a_model_of_another_dtype(case: Case, dtype: torch.dtype) -> None:
    metric = fed(case)
    nn.ModuleList([metric]).to(dtype).to("cpu").half()
    assert metric.compute().item() == pytest.approx(case.expected(), rel=1e-12)


@every_case
def test_metrics_can_be_pickled(case: Case) -> None:
    again = pickle.loads(pickle.dumps(fed(case)))
    assert again.compute().item() == pytest.approx(case.expected(), rel=1e-12)


@every_case
def test_direction_is_known(case: Case) -> None:
    assert case.make().higher_is_better in (True, False)
    assert case.make().is_differentiable is False


@pytest.mark.gpu
@every_case
def test_numbers_on_a_gpu_are_those_on_a_cpu(case: Case) -> None:
    metric = case.make().to("cuda")
    metric.update(*(x.to("cuda") for x in case.data()))
    assert metric.compute().device.type == "cuda"
    assert metric.compute().item() == pytest.approx(case.expected(), rel=1e-10)
    assert float(case.function(*(x.to("cuda") for x in case.data()))) == pytest.approx(
        case.expected()
    )


def test_a_collection_takes_predictions() -> None:
    collection = MetricCollection([streaming.BrierScore(), streaming.CalibrationError()])
    prediction, labels = Prediction(samples()[0].log()), samples()[1]
    collection.update(prediction, labels)
    found = collection.compute()
    assert found["BrierScore"].item() == pytest.approx(metrics.brier(prediction, labels))
    assert found["CalibrationError"].item() == pytest.approx(metrics.ece(prediction, labels))
    pavpu = streaming.PavpuScore()
    pavpu.update(prediction, labels)
    assert pavpu.compute() == float(metrics.pavpu(prediction, labels))


def test_number_of_bins() -> None:
    metric = streaming.CalibrationError(bins=3)
    metric.update(*probabilities())
    assert metric.compute().item() == pytest.approx(metrics.ece(*probabilities(), 3))


def test_alpha() -> None:
    metric = streaming.PavpuScore(alpha=0.3)
    metric.update(*samples())
    assert metric.compute().item() == metrics.pavpu(*samples(), 0.3).value


@pytest.mark.usefixtures("as_installed")
def test_impossible_settings_are_refused() -> None:
    for make, message in [
        (lambda: streaming.CalibrationError(bins=0), "bins=0"),
        (lambda: streaming.PavpuScore(alpha=1), "alpha=1"),
    ]:
        with pytest.raises(MetricInputError, match=message):
            make()


@pytest.mark.usefixtures("as_installed")
def test_impossible_batches_are_refused() -> None:
    probs, labels = probabilities()
    with pytest.raises(MetricInputError, match=r"outside is a tensor of torch.int64"):
        streaming.OutOfDistributionAuroc().update(probs[:, 0], labels)
    with pytest.raises(MetricInputError, match="labels has the shape"):
        streaming.CalibrationError().update(probs, labels[1:])


@pytest.mark.parametrize("score", ["entropy", "mutual_information", "disagreement"])
def test_predictions_are_scored_by_their_uncertainty(score: str) -> None:
    prediction, outside = Prediction(samples()[0].log()), samples()[1] > 1
    metric = streaming.OutOfDistributionAuroc(score)
    metric.update(prediction, outside)
    values = getattr(prediction, score)
    expected = metrics.auroc(values[~outside], values[outside])
    assert metric.compute().item() == pytest.approx(expected)
    with pytest.raises(MetricInputError, match=r"score='p_value'.*Choose one of"):
        streaming.OutOfDistributionAuroc("p_value")


def test_one_kind_of_example_is_not_enough() -> None:
    metric = streaming.OutOfDistributionFpr95()
    metric.update(torch.rand(3), torch.tensor([False] * 3))
    with pytest.raises(MetricInputError, match="outside is empty"):
        metric.compute()
