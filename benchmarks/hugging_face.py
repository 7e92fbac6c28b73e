"""Which of Hugging Face's architectures convert by a plain call, and how close they come to the model.

    pip install transformers
    python benchmarks/hugging_face.py --out tools/records/hugging-face.json

Each architecture is built small, with random weights, and passed to `convert` as it is, with pixels, sound or
numbers of tokens. It is converted by `sigma-delta`: with the default number of levels, to compare a run with
the quantised ANN and to verify it; and with 2^18 levels, to compare its limit with the model.
"""

import argparse
import json
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rheobase
from rheobase.conversion import CaptureError
from rheobase.io import find_commit
from rheobase.network import answer_of
from torchvision_models import relative_error

SAMPLES, TOKENS, VOCABULARY, STEPS, LEVELS = 8, 12, 100, 64, 2**18
VISION = {"num_labels": 5, "image_size": 32}
TRANSFORMER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
PATCHES = TRANSFORMER | VISION | {"patch_size": 8}
TEXT = TRANSFORMER | {"vocab_size": VOCABULARY, "num_labels": 3, "max_position_embeddings": 40}
CAUSAL = TRANSFORMER | {
    "vocab_size": VOCABULARY, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
STAGES = VISION | {"hidden_sizes": [16, 32], "depths": [1, 1]}
SOUND = TRANSFORMER | {
    "num_labels": 3, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip

Inputs = Callable[[], Tensor]


def pixels(size: int = 32) -> Tensor:
    return nn.functional.interpolate(torch.randn(SAMPLES, 3, 4, 4), size, mode="bicubic")


def tokens() -> Tensor:
    return torch.randint(3, VOCABULARY, (SAMPLES, TOKENS))


def waves() -> Tensor:
    return torch.randn(SAMPLES, 800)


ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any], Inputs]] = {
    "ResNet": ("ResNetForImageClassification", "ResNetConfig", STAGES | {"embedding_size": 16}, pixels),
    "RegNet": (
        "RegNetForImageClassification",
        "RegNetConfig",
        STAGES | {"embedding_size": 16, "groups_width": 8},
        pixels,
    ),
    "BiT": (
        "BitForImageClassification",
        "BitConfig",
        STAGES | {"embedding_size": 16, "num_groups": 4, "layer_type": "preactivation"},
        lambda: pixels(64),
    ),
    "MobileNetV1": (
        "MobileNetV1ForImageClassification",
        "MobileNetV1Config",
        VISION | {"depth_multiplier": 0.25},
        lambda: pixels(64),
    ),
    "MobileNetV2": (
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        VISION | {"depth_multiplier": 0.35},
        lambda: pixels(64),
    ),
    "EfficientNet": (
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        VISION | {"width_coefficient": 0.5, "depth_coefficient": 0.3, "hidden_dim": 640},
        lambda: pixels(64),
    ),
    "ConvNeXt": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        STAGES | {"num_stages": 2},
        pixels,
    ),
    "ConvNeXt V2": (
        "ConvNextV2ForImageClassification",
        "ConvNextV2Config",
        STAGES | {"num_stages": 2},
        pixels,
    ),
    "PoolFormer": (
        "PoolFormerForImageClassification",
        "PoolFormerConfig",
        STAGES | {"patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1], "num_encoder_blocks": 2},
        pixels,
    ),
    "MobileViT": (
        "MobileViTForImageClassification",
        "MobileViTConfig",
        {"num_labels": 5, "image_size": 128, "hidden_sizes": [16, 24, 32]}
        | {"neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32]},
        lambda: pixels(128),
    ),
    "ViT": ("ViTForImageClassification", "ViTConfig", PATCHES, pixels),
    "DeiT, two heads": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", PATCHES, pixels),
    "BEiT": ("BeitForImageClassification", "BeitConfig", PATCHES, pixels),
    "Data2Vec vision": ("Data2VecVisionForImageClassification", "Data2VecVisionConfig", PATCHES, pixels),
    "DINOv2": ("Dinov2ForImageClassification", "Dinov2Config", PATCHES, pixels),
    "ViT MSN": ("ViTMSNForImageClassification", "ViTMSNConfig", PATCHES, pixels),
    "Swin": (
        "SwinForImageClassification",
        "SwinConfig",
        VISION | {"patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        pixels,
    ),
    "Swin V2": (
        "Swinv2ForImageClassification",
        "Swinv2Config",
        VISION | {"patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        pixels,
    ),
    "PVT": (
        "PvtForImageClassification",
        "PvtConfig",
        VISION
        | {
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "sequence_reduction_ratios": [2, 1],
        }
        | {"patch_sizes": [4, 2], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]},
        pixels,
    ),
    "SegFormer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {"num_labels": 5, "num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [16, 32]}
        | {"num_attention_heads": [1, 2], "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2]}
        | {"mlp_ratios": [2, 2], "decoder_hidden_size": 16},
        pixels,
    ),
    "CLIP, image encoder": (
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        TRANSFORMER | {"image_size": 32, "patch_size": 8, "projection_dim": 16},
        pixels,
    ),
    "SigLIP, image encoder": (
        "SiglipVisionModel",
        "SiglipVisionConfig",
        TRANSFORMER | {"image_size": 32, "patch_size": 8},
        pixels,
    ),
    "BERT": ("BertForSequenceClassification", "BertConfig", TEXT, tokens),
    "BERT, each token": ("BertForTokenClassification", "BertConfig", TEXT, tokens),
    "DistilBERT": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "num_labels": 3},
        tokens,
    ),
    "ALBERT": ("AlbertForSequenceClassification", "AlbertConfig", TEXT | {"embedding_size": 16}, tokens),
    "ELECTRA": ("ElectraForSequenceClassification", "ElectraConfig", TEXT | {"embedding_size": 16}, tokens),
    "RoBERTa": ("RobertaForSequenceClassification", "RobertaConfig", TEXT, tokens),
    "MPNet": ("MPNetForSequenceClassification", "MPNetConfig", TEXT, tokens),
    "RoFormer": ("RoFormerForSequenceClassification", "RoFormerConfig", TEXT, tokens),
    "SqueezeBERT": (
        "SqueezeBertForSequenceClassification",
        "SqueezeBertConfig",
        TEXT | {"embedding_size": 32},
        tokens,
    ),
    "MobileBERT": (
        "MobileBertForSequenceClassification",
        "MobileBertConfig",
        TEXT | {"embedding_size": 32, "intra_bottleneck_size": 16},
        tokens,
    ),
    "DeBERTa": ("DebertaV2ForSequenceClassification", "DebertaV2Config", TEXT, tokens),
    "ModernBERT": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        TEXT | {"pad_token_id": 0},
        tokens,
    ),
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
        | {"bos_token_id": 1, "eos_token_id": 2},
        tokens,
    ),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", CAUSAL, tokens),
    "OPT": (
        "OPTForCausalLM",
        "OPTConfig",
        CAUSAL | {"ffn_dim": 64, "word_embed_proj_dim": 32},
        tokens,
    ),
    "BLOOM": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 2}
        | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        tokens,
    ),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", CAUSAL, tokens),
    "Mistral": ("MistralForCausalLM", "MistralConfig", CAUSAL | {"num_key_value_heads": 1}, tokens),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", CAUSAL | {"num_key_value_heads": 2}, tokens),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", CAUSAL | {"num_key_value_heads": 2, "head_dim": 16}, tokens),
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", CAUSAL | {"num_key_value_heads": 1, "head_dim": 16}, tokens),
    "Phi": ("PhiForCausalLM", "PhiConfig", CAUSAL, tokens),
    "Mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        CAUSAL | {"num_key_value_heads": 2, "num_local_experts": 2},
        tokens,
    ),
    "Mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
        tokens,
    ),
    "Wav2Vec2": ("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", SOUND, waves),
    "HuBERT": ("HubertForSequenceClassification", "HubertConfig", SOUND, waves),
    "AST": (
        "ASTForAudioClassification",
        "ASTConfig",
        TRANSFORMER | {"num_labels": 3, "max_length": 64, "num_mel_bins": 32},
        lambda: torch.randn(SAMPLES, 64, 32),
    ),
    "Whisper, classifier": (
        "WhisperForAudioClassification",
        "WhisperConfig",
        {"num_labels": 3, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2}
        | {"encoder_ffn_dim": 64, "num_mel_bins": 16, "max_source_positions": 16, "vocab_size": VOCABULARY}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
        lambda: torch.randn(SAMPLES, 16, 32),
    ),
}
"""The model, its configuration and settings, and its inputs."""


def build(transformers: Any, name: str) -> tuple[nn.Module, Tensor]:
    """An architecture with random weights and, in its batch norms, the statistics of its inputs."""
    torch.manual_seed(0)
    model_type, config_type, settings, inputs = ARCHITECTURES[name]
    model: nn.Module = getattr(transformers, model_type)(getattr(transformers, config_type)(**settings))
    x = inputs()
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)  # the signal keeps its size
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    model.eval()
    for norm in norms:
        nn.init.ones_(norm.weight)
        norm.reset_running_stats()
        norm.train().momentum = None
    if norms:
        with torch.no_grad():
            model(x)
    return model.eval(), x


def joined(outputs: Any) -> Tensor:
    """What a model answers, a row for each sample."""
    answer = answer_of(outputs)
    parts = list(answer.values()) if isinstance(answer, dict) else [answer]
    return torch.cat([part.flatten(1) for part in parts], 1)


def examine(transformers: Any, name: str) -> dict[str, Any]:
    """What the page says of one architecture."""
    model, x = build(transformers, name)
    with torch.no_grad():
        expected = joined(model(x))
    row: dict[str, Any] = {"model": name, "type": type(model).__name__, "input": list(x.shape[1:])}
    try:
        snn = rheobase.convert(model, "sigma-delta", x, progress=False)
        fine = rheobase.convert(model, "sigma-delta", x, progress=False, levels=LEVELS)
    except (CaptureError, ValueError) as error:
        why = str(error)
        for package in (transformers, torch):
            why = why.replace(f"{Path(package.__file__).parents[1]}/", "")
        return row | {"converts": False, "why": why}
    run = rheobase.simulate(snn, x, STEPS)
    events = torch.stack([*run.spikes.values()]).sum(0)
    return row | {
        "converts": True,
        "sites": len(snn.sites),
        "silent_after": int(events.nonzero().max()) + 1,
        "equal": torch.equal(run.logits[-1], snn.limit(x)),
        "verified": rheobase.verify(model, snn, x[:1], samples=1, raise_on_failure=False).passed,
        "error": relative_error(joined(fine.limit(x)), expected),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--out", type=Path, help="where the record goes (JSON)")
    options = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    rows = []
    for name in options.models:
        try:
            row = examine(transformers, name)
        except Exception as error:  # one architecture must not end the others
            row = {"model": name, "converts": False, "why": repr(error)}
        rows.append(row)
        print(name, {k: v for k, v in row.items() if k not in ("model", "type")}, flush=True)
        record = {
            "transformers": transformers.__version__, "torch": torch.__version__,
            "python": platform.python_version(), "commit": find_commit(), "samples": SAMPLES, "steps": STEPS,
            "levels": LEVELS, "rows": rows,
        }  # fmt: skip
        if options.out:
            options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{sum(row['converts'] for row in rows)} of {len(rows)} convert")


if __name__ == "__main__":
    main()
