"""Further families of transformers: each converts faithfully, or is refused with a babn error."""

from contextlib import suppress
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import babn
from babn.conversion.examples import example_call
from models import gap, outputs, surface

# Other people's models warn of many things.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("embedding_size", "projection_dim", "encoder_hidden_size", "image_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_experts"), 4),
    **dict.fromkeys(("num_local_experts", "n_routed_experts", "attention_window"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "type_vocab_size"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "patch_size", "num_mel_bins"), 8),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "n_inner", "hidden_dim"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **{"vocab_size": 99, "sliding_window": 4, "decoder_start_token_id": 1},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
SOUND = {"conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
WINDOWS = {
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "window_size": 4,
    "patch_size": 4,
}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
LATENT |= {"v_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4}
WORDS = {"emb_dim": 32, "n_words": 99}
SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("wav2vec2", "hubert", "wavlm", "unispeech", "data2vec-audio"), SOUND),
    **dict.fromkeys(("swin", "swinv2", "donut-swin", "maskformer-swin"), WINDOWS),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), LATENT),
    "sew-d": {"conv_dim": [16] * 13, "squeeze_factor": 1, "feature_layer_norm_eps": 1e-5},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "luke": {"entity_vocab_size": 9, "entity_emb_size": 8},
    "roc_bert": {"pronunciation_vocab_size": 99, "shape_vocab_size": 99},
    "esm": {"pad_token_id": 1, "mask_token_id": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    **dict.fromkeys(("xlm", "flaubert"), WORDS),
}

WORKING = """
    afmoe altclip apertus arcee beit bert-generation biogpt bitnet blenderbot camembert
    chinese_clip clipseg cohere cohere2 ctrl data2vec-audio data2vec-text data2vec-vision deberta-v2
    deepseek_v2 deepseek_v3 deit dinov2 dinov3_vit doge dpr dpt ernie ernie4_5 esm eurobert exaone4
    falcon falcon_h1 gemma gemma3_text glm glm4 gpt_bigcode gpt_neox granite granitemoe helium
    hrm_text hubert ijepa jetmoe layoutlm lfm2 llama4_text longt5 m2m_100 marian markuplm mbart
    metaclip_2 minimax mixtral modernbert-decoder mt5 nemotron_h nomic_bert olmo olmo2 olmo3 olmoe
    opt owlvit pegasus pegasus_x persimmon phi phi3 phimoe plbart qwen2_audio qwen2_moe qwen3_moe
    roberta-prelayernorm roc_bert sew siglip smollm3 splinter stablelm starcoder2 swin
    switch_transformers t5gemma umt5 unispeech vit_mae vit_msn wav2vec2 xlm-roberta xlm-roberta-xl
"""
OTHERS = """
    big_bird bigbird_pegasus blip bloom canine codegen convbert deberta donut-swin flaubert flava
    fnet fsmt git gpt_neo gpt_oss gptj groupvit ibert imagegpt led longformer luke mamba
    maskformer-swin megatron-bert mobilebert mpt mra mvp nystromformer openai-gpt rembert roformer
    rwkv sew-d squeezebert swinv2 tapas vilt visual_bert vitdet wavlm xglm xlm xmod yoso
"""


def small(kind: type, **settings: Any) -> dict[str, Any]:
    """Arguments that make a configuration of this class tiny, nested ones included."""
    usual = kind()
    made = {name: size for name, size in SMALL.items() if name in vars(usual)}
    inner_configs = {name: getattr(usual, name) for name in kind.sub_configs or {}}
    nested = {name: type(inner) for name, inner in inner_configs.items() if inner is not None}
    made |= {
        name: {**small(inner), "model_type": inner.model_type} for name, inner in nested.items()
    }
    return made | settings


def tiny(family: str) -> nn.Module:
    kind = CONFIG_MAPPING[family]
    torch.manual_seed(0)
    model = hf.AutoModel.from_config(kind(**small(kind, **SETTINGS.get(family, {})))).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, 0.0, 0.15)
    return model


def batch_for(model: nn.Module) -> dict[str, Any]:
    torch.manual_seed(0)
    return example_call(model, None)[1]


def convert(model: nn.Module) -> nn.Module:
    return babn.convert(model, babn.BeliefConfig(max_length=600, sigma=0.0))


def run(model: nn.Module) -> list[torch.Tensor]:
    batch = batch_for(model)
    torch.manual_seed(0)  # masked autoencoders draw their masks
    with torch.no_grad():
        return outputs(model, batch)


def assert_faithful(model: nn.Module) -> None:
    """A converted model computes what it does when it is reverted."""
    converted = run(model)
    assert gap(run(babn.revert(model)), converted) < 1e-4


@pytest.mark.parametrize("family", WORKING.split())
def test_a_family_converts(family: str) -> None:
    assert_faithful(convert(tiny(family)))


@pytest.mark.parametrize("family", OTHERS.split())
def test_a_family_converts_or_is_refused_untouched(family: str) -> None:
    model = tiny(family)
    with suppress(Exception):  # some models change themselves in their first pass
        model(**batch_for(model))
    before = surface(model)
    try:
        convert(model)
    except babn.errors.BabnError:
        assert surface(model) == before
    else:
        assert_faithful(model)
