"""Builds a tiny random text-to-image pipeline from configs, and a folder of images with captions. Nothing is downloaded."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DDPMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer


def tokenizer(folder: Path) -> CLIPTokenizer:
    """A vocabulary of single letters, each alone and at the end of a word."""
    folder.mkdir(parents=True)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16)


def pipeline(folder: Path) -> None:
    torch.manual_seed(0)
    text = CLIPTextConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=52,
        eos_token_id=53,
        pad_token_id=53,
    )
    vae = AutoencoderKL(block_out_channels=(8,), norm_num_groups=2, latent_channels=4, sample_size=16)
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(8, 8),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=2,
        norm_num_groups=2,
    )
    StableDiffusionPipeline(
        vae=vae,
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer(folder / "letters"),
        unet=unet,
        scheduler=DDPMScheduler(num_train_timesteps=100),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder / "pipeline")


def images(folder: Path, count: int) -> None:
    (folder / "images").mkdir(parents=True)
    generator = np.random.default_rng(0)
    lines = []
    for number in range(count):
        name = f"{number:02d}.png"
        Image.fromarray(generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(folder / "images" / name)
        lines.append(json.dumps({"file_name": name, "text": "a b c"}))
    (folder / "images" / "metadata.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=8)
    options = parser.parse_args()
    pipeline(options.folder)
    images(options.folder, options.images)
