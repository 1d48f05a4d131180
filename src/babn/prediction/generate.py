"""Generated text with uncertainty, from the posterior mean and from samples of attention."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from babn.attention.noise_source import FixedNoise, fold_in
from babn.conversion.override import overriding
from babn.conversion.state import belief_states
from babn.errors import ConfigError, SamplesError
from babn.prediction.batches import Batches, without_targets
from babn.prediction.generation import Generation, SampledTexts, TokenUncertainty
from babn.prediction.predict import find_logits, following_seed, repeat
from babn.prediction.result import cat_padded
from babn.prediction.sampling import evaluating
from babn.prediction.stored_settings import get_temperature
from babn.validation import check_count

OWN = ("num_return_sequences", "return_dict_in_generate", "output_scores", "output_logits")
"""Arguments of transformers' `generate` that `babn.generate` sets itself."""


def generate(
    model: nn.Module,
    inputs: Any,
    samples: int = 10,
    seed: int | None = 0,
    *,
    tokenizer: Any = None,
    texts: bool = True,
    samples_per_pass: int = 4,
    batch_size: int = 8,
    progress: bool = True,
    **generate_kwargs: Any,
) -> Generation:
    """Generates text with the posterior mean, and measures its uncertainty.

    The text is scored under samples of attention, token by token, and `samples` further texts are
    generated, each under its own sample. The noise of a sample depends only on the seed, the
    indices of the sample and the prompt, the layer, the head and the positions: a cache, padding,
    the batch size and `samples_per_pass` do not change it. Beams of one search share a sample.

    Args:
        model: A converted generative model of transformers; its training mode is restored.
        inputs: Token ids or a dictionary of arguments of `generate`; an iterable of these, for
            example a `DataLoader`; or a list of texts. Prompts of different lengths in one batch
            must be padded on the left and need an `attention_mask`; this is done for texts.
        samples: How many samples of attention to draw.
        seed: Makes samples of attention and of tokens (`do_sample=True`) reproducible; `None` uses
            torch's global state.
        tokenizer: The model's tokenizer, for texts.
        texts: Whether to generate texts under the samples too, at the cost of a generation each.
        samples_per_pass: How many samples share a forward pass; fewer take less memory.
        batch_size: Texts in one batch.
        progress: Whether to show a progress bar over several batches, if tqdm is installed.
        **generate_kwargs: Passed on to the model's `generate`, e.g. `max_new_tokens=20`.
    """
    check_count("samples", samples, SamplesError)
    check_count("samples_per_pass", samples_per_pass, SamplesError)
    belief_states(model)
    _check_generates(model, generate_kwargs)
    side = {"padding_side": "left", "return_token_type_ids": False}
    batches = Batches.of(model, inputs, tokenizer, batch_size, **side)
    seed = int(torch.randint(2**62, ())) if seed is None else seed
    order = None if batches.order is None else batches.order.argsort().tolist()
    found: list[Generation] = []
    with torch.no_grad(), evaluating(model), following_seed(seed, model):
        for batch in batches.shown("generating", progress):
            first = sum(map(len, found))
            prompts = _Prompts(model, _with_mask(batch), seed, generate_kwargs, first, order)
            found.append(prompts.generation(samples, samples_per_pass, texts))
    return batches.in_order(Generation.cat(found))


class _Prompts:
    """One batch of prompts, for which texts are generated and scored.

    Args:
        model: A converted model that generates.
        inputs: Keyword arguments of its `generate`, with an attention mask.
        seed: The seed of all batches.
        settings: Further arguments of the model's `generate`.
        first: Number of prompts in earlier batches.
        order: The place of each prompt in the user's data, if batches are sorted by length.

    Attributes:
        rows: The batch size.
        numbers: Index of each prompt in the user's data, on which its noise depends.
        length: The number of prompt tokens in a generated sequence.
        eos_ids: Token ids that end a text.
        pad_id: The token id after shorter texts.
    """

    def __init__(
        self,
        model: Any,
        inputs: dict[str, Any],
        seed: int,
        settings: dict[str, Any],
        first: int,
        order: Sequence[int] | None,
    ) -> None:
        self.model, self.inputs, self.seed, self.settings = model, inputs, seed, settings
        tensors = (x for x in inputs.values() if isinstance(x, Tensor) and x.ndim)
        self.rows = len(next(tensors))
        places = range(first, first + self.rows)
        self.numbers = places if order is None else [order[place] for place in places]
        self.has_encoder = bool(getattr(model.config, "is_encoder_decoder", False))
        given = inputs.get("decoder_input_ids" if self.has_encoder else "input_ids")
        self.length = 1 if given is None else given.shape[1]
        config = settings.get("generation_config", model.generation_config)
        eos = settings.get("eos_token_id", config.eos_token_id)
        self.eos_ids = [] if eos is None else torch.as_tensor(eos).reshape(-1).tolist()
        pad = settings.get("pad_token_id", config.pad_token_id)
        self.pad_id = int(pad) if pad is not None else (self.eos_ids or [0])[0]

    def generation(self, samples: int, samples_per_pass: int, texts: bool) -> Generation:
        """Text of the posterior mean, scored under samples, and texts of the samples."""
        starts = range(0, samples, samples_per_pass)
        passes = [range(samples)[start : start + samples_per_pass] for start in starts]
        with overriding(self.model, mode="mean"):
            sequences = self.generate(1)
        statistics, tokens = TokenStatistics(), sequences[:, self.length :]
        for part in passes:
            statistics.add(self.logits(sequences.repeat(len(part), 1), part), tokens)
        found = _joined([self.sampled(part) for part in passes], self.pad_id) if texts else None
        scored = statistics.result(up_to_the_end(tokens, self.eos_ids))
        return Generation(sequences, self.length, scored, found, self.pad_id)

    def repeated(self, count: int) -> dict[str, Any]:
        """The inputs `count` times, one copy after the other."""
        return {name: repeat(x, count, self.rows) for name, x in self.inputs.items()}

    def generate(self, copies: int) -> Tensor:
        """Sequences for `copies` copies of the prompts."""
        sequences: Tensor = self.model.generate(**self.repeated(copies), **self.settings)
        return sequences

    def sampled(self, part: range) -> SampledTexts:
        """Texts generated under samples, scored under the same samples."""
        with overriding(self.model, mode="sample", noise_source=self.noise(part)):
            sequences = self.generate(len(part))
        log_probs = self.logits(sequences, part).log_softmax(-1)
        sequences = sequences.unflatten(0, (len(part), -1))
        tokens = sequences[..., self.length :]
        seen = up_to_the_end(tokens, self.eos_ids)
        return SampledTexts(sequences, at_tokens(log_probs, tokens) * seen, seen)

    def noise(self, part: range) -> FixedNoise:
        """The noise of the samples in `part`, one block of rows for each."""
        seeds = [fold_in(fold_in(self.seed, s), number) for s in part for number in self.numbers]
        mask, padding = self.inputs.get("attention_mask"), [0] * self.rows
        if mask is not None and not self.has_encoder:  # prompts are padded on the left
            padding = (mask.cumsum(-1) == 0).sum(-1).tolist()
        return FixedNoise(seeds, padding * len(part))

    def logits(
        self, sequences: Int[Tensor, "rows length"], part: range
    ) -> Float[Tensor, "sample batch token id"]:
        """Logits of the new tokens of `sequences` under samples, divided by the temperature."""
        new = sequences.shape[1] - self.length
        inputs = self.repeated(len(part))
        if self.has_encoder:
            inputs["decoder_input_ids"] = sequences[:, :-1]
        else:
            seen = nn.functional.pad(inputs["attention_mask"], (0, new - 1), value=1)
            inputs |= {"input_ids": sequences[:, :-1], "attention_mask": seen}
            # The base model inside a PEFT wrapper, whose forward names its arguments.
            base = getattr(self.model, "get_base_model", lambda: self.model)()
            accepted = inspect.signature(base.forward).parameters
            if "position_ids" in accepted:
                inputs["position_ids"] = (seen.cumsum(-1) - 1).clamp(min=0)
            if "logits_to_keep" in accepted:
                inputs["logits_to_keep"] = new
            inputs.pop("token_type_ids", None)
        with overriding(self.model, mode="sample", noise_source=self.noise(part)):
            logits = find_logits(self.model(**inputs))[:, -new:]
        logits = logits.float() / get_temperature(self.model)
        return logits.unflatten(0, (len(part), -1))


def _joined(parts: list[SampledTexts], pad: int) -> SampledTexts:
    """Texts of several passes, padded to the longest."""
    sequences = cat_padded([part.sequences for part in parts], 0, pad)
    log_probs = cat_padded([part.log_probs for part in parts], 0)
    return SampledTexts(sequences, log_probs, cat_padded([part.seen for part in parts], 0))


def _with_mask(inputs: Any) -> dict[str, Any]:
    """Arguments of `generate` without targets, with an attention mask if there are token ids."""
    if isinstance(inputs, tuple | list) and len(inputs) == 1:
        inputs = inputs[0]
    given = without_targets(inputs if isinstance(inputs, Mapping) else {"input_ids": inputs})
    ids = given.get("input_ids")
    if isinstance(ids, Tensor) and given.get("attention_mask") is None:
        given["attention_mask"] = torch.ones_like(ids)
    if not any(isinstance(value, Tensor) and value.ndim for value in given.values()):
        raise ConfigError("inputs has no tensor. Pass token ids, or a tokenizer's output.")
    return given


def _check_generates(model: Any, settings: dict[str, Any]) -> None:
    if not hasattr(model, "generate") or not hasattr(model, "generation_config"):
        raise ConfigError(
            f"{type(model).__name__} has no generate(). Convert a transformers language model, "
            "such as AutoModelForCausalLM loads; for other models use babn.predict."
        )
    for name in OWN:
        if name in settings:
            raise ConfigError(
                f"{name}={settings[name]!r} is not supported here. samples= sets how many texts "
                "there are, and the result holds their log probabilities."
            )


class TokenStatistics:
    """Running sums over samples, so that vocabulary-sized tensors are not kept for each sample."""

    def __init__(self) -> None:
        self.log_probs: list[Tensor] = []
        self.probs: Tensor | float = 0.0
        self.entropies: Tensor | float = 0.0

    def add(
        self, logits: Float[Tensor, "sample batch token id"], tokens: Int[Tensor, "batch token"]
    ) -> None:
        """Adds the logits of further samples at the same tokens."""
        log_probs = logits.log_softmax(-1)
        self.log_probs.append(at_tokens(log_probs, tokens.expand(logits.shape[:-1])))
        probs = log_probs.exp()
        self.probs = self.probs + probs.sum(0)
        self.entropies = self.entropies - (probs * log_probs).sum(-1).sum(0)

    def result(self, seen: Bool[Tensor, "batch token"]) -> TokenUncertainty:
        """The statistics over all samples."""
        log_probs = torch.cat(self.log_probs)
        mean = torch.as_tensor(self.probs) / len(log_probs)
        entropy = -torch.xlogy(mean, mean).sum(-1)
        expected = torch.as_tensor(self.entropies) / len(log_probs)
        return TokenUncertainty(log_probs * seen, entropy * seen, expected * seen, seen)


def at_tokens(
    log_probs: Float[Tensor, "*any token id"], tokens: Int[Tensor, "*any token"]
) -> Float[Tensor, "*any token"]:
    """The log probabilities of `tokens`."""
    return log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def up_to_the_end(
    tokens: Int[Tensor, "*any token"], eos_ids: list[int]
) -> Bool[Tensor, "*any token"]:
    """Mask of the tokens up to and including the first end-of-text token."""
    ended = torch.isin(tokens, torch.tensor(eos_ids, dtype=tokens.dtype, device=tokens.device))
    return ended.cumsum(-1) - ended.long() == 0
