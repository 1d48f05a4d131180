"""Saves and loads converted models: whole with `save_pretrained` and `load`, or adapters alone.

A saved model is an ordinary transformers folder whose weights include the belief parameters and
whose configuration describes the conversion. Without babn it loads as the deterministic model.
"""

import json
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from babn.attention.method import MethodConfig
from babn.conversion.calls import Call, Chain, from_list
from babn.conversion.convert import FORMAT, apply_plan, check_convertible, check_finite, describe
from babn.conversion.discover import discover
from babn.conversion.state import ATTRIBUTE, BeliefState, belief_states, converted_roots
from babn.errors import (
    BabnWarning,
    ConfigError,
    ExampleInputsError,
    FormatError,
    MismatchError,
    import_extra,
    one_line,
)
from babn.files import check_files, make_folder, parse_json, read_object, replace_text
from babn.fingerprint import Fingerprint, compare, fingerprint
from babn.model_folders import LOCAL, check_local, find_folder
from babn.plugins import find_model_class
from babn.tensor_files import CHECKSUM, checksum, read_tensors, write_tensors
from babn.text import quiet
from babn.validation import shown

Model = TypeVar("Model", bound=nn.Module)

DESCRIPTION, WEIGHTS = "belief.json", "belief.safetensors"

MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
"""Files of a model and its tokenizer that are fetched from the hub."""

AGAIN = "Save the model again."

SAVED = "modules_to_save/"
"""Prefix of tensors of the base that an adapter holds."""

BASE = "base_weights"
"""Key of the base's fingerprint in a description."""


def load(
    folder: str | Path,
    model_class: type[Any] | None = None,
    example_inputs: Any = None,
    **kwargs: Any,
) -> Any:
    """Loads a converted model from a folder that `save_pretrained` wrote, or from the hub.

    Args:
        folder: The folder, or a name on the hub such as `"me/reviews"`.
        model_class: Class of the model, if neither transformers nor an installed package has it.
        example_inputs: As for `convert`; needed to verify the attention calls if no example can be
            built.
        **kwargs: Passed on to `from_pretrained`, and `revision` and `token` to the hub. Only
            weights, configuration and tokenizer are fetched, and no code is run unless
            `trust_remote_code=True`.
    """
    hub = {name: kwargs.pop(name) for name in ("revision", "token") if name in kwargs}
    folder = find_folder(folder, MODEL_FILES, **hub)
    check_files(folder)
    config = read_object(folder / "config.json", AGAIN)
    description = config.pop(ATTRIBUTE, None)
    if description is None:
        raise FormatError(
            f"{folder / 'config.json'} describes no conversion. Load the folder with "
            "from_pretrained and call babn.convert, or babn.load_adapter if it holds an adapter."
        )
    check_local(config, folder / "config.json", kwargs)
    state = _make_state(description, _belief_tensors(folder), folder / "config.json")
    model = _load_base(folder, config, model_class, kwargs)
    _check_paths(model, state.chains, folder)
    check_convertible(model, state.config)
    with suppress(ExampleInputsError):
        _check_chains(state, model, example_inputs, folder)
    return apply_plan(model, state)


def save_adapter(model: nn.Module, folder: str | Path) -> Path:
    """Saves the parameters that conversion added, without the base.

    The file also holds the modules that `babn.freeze_base` kept trainable, such as a classifier.
    """
    states = belief_states(model)
    if len(states) > 1:
        raise MismatchError(
            f"{type(model).__name__} holds {len(states)} converted models. Save each separately."
        )
    folder = Path(folder)
    make_folder(folder)
    (root,) = converted_roots(model)
    saved = states[0].saved_modules
    described = {**describe(states[0]), BASE: asdict(fingerprint(root, saved))}
    heads = {
        f"{SAVED}{module}.{name}": x
        for module in saved
        for name, x in root.get_submodule(module).state_dict().items()
    }
    # The weights file holds the description too: an interruption may leave an old one beside it.
    written = write_tensors(
        folder / WEIGHTS, states[0].state_dict() | heads, {ATTRIBUTE: json.dumps(described)}
    )
    text = json.dumps({**described, CHECKSUM: written}, indent=2)
    replace_text(folder / DESCRIPTION, text + "\n")
    return folder


def load_adapter(
    model: Model,
    folder: str | Path,
    example_inputs: Any = None,
    *,
    check_base: bool = True,
    **hub: Any,
) -> Model:
    """Converts a base and loads the parameters that `save_adapter` wrote.

    Args:
        model: The base, of the architecture that the parameters were trained with. Modules that the
            adapter holds, such as a classifier, are replaced; they may have any values.
        folder: The folder, or a name on the hub such as `"me/reviews"`.
        example_inputs: As for `convert`.
        check_base: Whether all other weights of the base must equal those that the adapter was
            saved with, up to rounding to float32, bfloat16 or float16. Warns about
            tensors that cannot be compared (quantised on one side, sharded or offloaded). `False`
            allows any base of the same architecture, for example one that was trained further.
        **hub: `revision` and `token` on the hub.
    """
    folder = find_folder(folder, (DESCRIPTION, WEIGHTS), **hub)
    tensors, about = read_tensors(folder / WEIGHTS, AGAIN)
    description = _read_description(folder / DESCRIPTION, tensors, about)
    heads = {n.removeprefix(SAVED): x for n, x in tensors.items() if n.startswith(SAVED)}
    added = {n: x for n, x in tensors.items() if not n.startswith(SAVED)}
    state = _make_state(description, added, folder / DESCRIPTION)
    check_convertible(model, state.config)
    _check_chains(state, model, example_inputs, folder)
    _check_paths(model, state.chains, folder)
    _check_heads(heads, model, folder)
    if check_base:
        _check_base(description, model, folder, state.saved_modules)
    model.load_state_dict(heads, strict=False)
    return apply_plan(model, state)


def _check_heads(heads: dict[str, Tensor], model: nn.Module, folder: Path) -> None:
    """Validates that the model has the modules of an adapter in the same shapes."""
    check_finite(heads)
    own = model.state_dict()
    for name, x in heads.items():
        shape = tuple(own[name].shape) if name in own else "nothing"
        if shape != tuple(x.shape):
            raise MismatchError(
                f"{folder} holds {name} of shape {tuple(x.shape)}; {type(model).__name__} has "
                f"{shape} there. Load the base with the head that it was trained with, such as the "
                "same num_labels."
            )


def _read_description(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> Any:
    """The description of an adapter, from its weights file if that holds one."""
    beside = read_object(path, AGAIN)
    if ATTRIBUTE not in about:
        return beside
    inside, written = parse_json(about[ATTRIBUTE]), checksum(tensors, about)
    # A description with another checksum is from an earlier save; the weights are intact.
    if beside.get(CHECKSUM) == written and beside != {**inside, CHECKSUM: written}:
        raise FormatError(f"{path} is damaged: it differs from what was written. {AGAIN}")
    return inside


def _check_base(
    description: Any, model: nn.Module, folder: Path, replaced: tuple[str, ...]
) -> None:
    """Raises if the base has other weights; warns about those that cannot be compared.

    Args:
        description: The description of the adapter.
        model: The base.
        folder: The adapter's folder, for messages.
        replaced: Modules that the adapter replaces, which may differ.
    """
    try:
        base = description.get(BASE)
        saved = Fingerprint() if base is None else Fingerprint.from_dict(base)
        found = compare(saved, model, replaced)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise FormatError(
            f"{folder / DESCRIPTION} is damaged: {BASE} is not the fingerprint of a base "
            f"({one_line(error)}). Save the model again, or pass check_base=False."
        ) from error
    if found.changed:
        raise MismatchError(
            f"The belief weights in {folder} were saved from a base with other weights: "
            f"{_some(found.changed)} differ. Load them onto that base; if it was trained further "
            "on purpose, pass check_base=False; to keep a trained base use save_pretrained and "
            "babn.load."
        )
    if found.unverified:
        warnings.warn(
            f"Whether {type(model).__name__} is the base that the belief weights in {folder} were "
            f"saved from could not be verified: {_some(found.unverified)} cannot be compared, "
            "since one of the bases has them quantised, sharded, offloaded or not at all. If you "
            "know that it is, pass check_base=False; otherwise save them again from this base.",
            BabnWarning,
            stacklevel=3,
        )


def _some(names: list[str]) -> str:
    """The first names of a list."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _make_state(description: Any, tensors: dict[str, Tensor], path: Path) -> BeliefState:
    """Builds the state of a description and its tensors, validated before any model is changed."""
    config, chains, kept, modules = parse_description(description, path)
    check_finite(tensors)
    try:
        with torch.device("meta"):  # allocates no memory for a damaged description
            outline = BeliefState(config, chains)
        outline.load_state_dict({name: x.to("meta") for name, x in tensors.items()})
    except RuntimeError as error:
        raise MismatchError(
            f"{path.parent} does not fit its description: {one_line(error)} {AGAIN}"
        ) from error
    state = BeliefState(config, chains, kept)
    state.saved_modules = modules
    state.load_state_dict(tensors)
    return state


def parse_description(
    description: Any, path: Path
) -> tuple[MethodConfig, tuple[Chain, ...], tuple[Call, ...], tuple[str, ...]]:
    """Method, chains, kept calls and saved modules of a description.

    Args:
        description: The JSON values that `describe` makes.
        path: The file that holds them, for error messages.
    """
    version = description.get("format") if isinstance(description, dict) else None
    if version != FORMAT:
        raise FormatError(
            f"{path} has format {version!r}; this version of babn reads format {FORMAT}. "
            "Install the version of babn that wrote it, or save the model again."
        )
    try:
        chains = from_list(description["chains"])
        if not chains or not all(chain.calls for chain in chains):
            raise ValueError("no attention calls")
        kept = tuple(map(Call.from_dict, description.get("kept", ())))
        modules = description.get("modules_to_save", [])
        if not isinstance(modules, list) or not all(isinstance(each, str) for each in modules):
            raise ValueError(f"modules_to_save={shown(modules)}.")
        config = MethodConfig.from_dict(dict(description["rule"]))
        return config, chains, kept, tuple(modules)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path} is damaged: {one_line(error)} {AGAIN}") from error


def _belief_tensors(folder: Path) -> dict[str, Tensor]:
    """The belief parameters in a transformers folder, from one or several files."""
    prefix = f"{ATTRIBUTE}."
    tensors: dict[str, Tensor] = {}
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise FormatError(f"{folder} has no model*.safetensors; other formats are not read.")
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
                tensors |= {name.removeprefix(prefix): file.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise FormatError(f"{path} is damaged: {one_line(error)}. {AGAIN}") from error
    return tensors


def _load_base(
    folder: Path, config: dict[str, Any], model_class: type[Any] | None, kwargs: dict[str, Any]
) -> Any:
    import_extra("transformers", "babn.load needs transformers", "transformers")
    model_class = model_class or _named_class(config, folder / "config.json")
    try:
        with quiet():  # transformers would warn about the belief parameters
            model, report = model_class.from_pretrained(
                folder, output_loading_info=True, **LOCAL | kwargs
            )
    except Exception as error:  # transformers raises many kinds for damaged files
        raise FormatError(
            f"{folder} cannot be loaded as {model_class.__name__}: {one_line(error)} Save the "
            "model again, or load it with the arguments that fit it."
        ) from error
    if missing := sorted(report["missing_keys"]):
        raise MismatchError(
            f"{folder} lacks {len(missing)} weights that {model_class.__name__} needs: "
            f"{_some(missing)}. Load the class and the configuration that it was saved from."
        )
    return model


def _named_class(config: dict[str, Any], path: Path) -> type[Any]:
    """The model class that a configuration names."""
    import transformers

    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    found = None
    with suppress(ImportError, RuntimeError):  # a class that needs another package
        found = find_model_class(str(name))
    # Other classes have no weights; auto classes would look for code in the folder.
    if found is None or not issubclass(found, transformers.PreTrainedModel):
        raise FormatError(
            f"{path} names the architecture {shown(name)}, which transformers does not provide. "
            "Pass model_class."
        )
    return found


def _check_paths(model: nn.Module, chains: tuple[Chain, ...], folder: Path) -> None:
    modules = dict(model.named_modules())
    for call in (call for chain in chains for call in chain.calls):
        found = type(modules[call.path]).__name__ if call.path in modules else "nothing"
        if found != call.module:
            raise MismatchError(
                f"{folder} was saved from a model with {call.module} at {call.path}; "
                f"{type(model).__name__} has {found} there. Load the class it was saved from."
            )


def _check_chains(state: BeliefState, model: nn.Module, example: Any, folder: Path) -> None:
    """Validates the saved chains against those that a dry run finds."""
    try:
        found = discover(model, example, state.config.layers).chains
    except ConfigError as error:
        raise MismatchError(
            f"The belief weights in {folder} do not fit {type(model).__name__}: {error}"
        ) from error

    def outline(chains: tuple[Chain, ...]) -> list[tuple[str, int, int, int]]:
        return [(c.name, len(c.calls), c.calls[0].heads, c.calls[0].head_dim) for c in chains]

    if outline(state.chains) != outline(found):
        raise MismatchError(
            f"The belief weights in {folder} are for chains (name, steps, heads, head size) "
            f"{outline(state.chains)}; {type(model).__name__} has {outline(found)}. Load them onto "
            "the architecture they were trained on."
        )
