"""vLLM with a small model of random weights for a while; tells how many tokens in how long.

vllm_run.py DIRECTORY SECONDS     DIRECTORY is made, with the model's description in it
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}


def main() -> None:
    """Warm up, work, tell."""
    # vLLM tells on stdout what it does: anyone who started this reads one line there.
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    directory, seconds = Path(sys.argv[1]), float(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    vllm: Any = importlib.import_module("vllm")
    model = vllm.LLM(
        str(directory),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=1024,
        gpu_memory_utilization=0.8,
    )
    many = vllm.SamplingParams(max_tokens=64, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": list(range(1, 65))} for _ in range(16)]
    model.generate(prompts, many, use_tqdm=False)
    pieces, begin_ns = 0, time.monotonic_ns()
    while time.monotonic_ns() - begin_ns < seconds * 1e9:
        answers = model.generate(prompts, many, use_tqdm=False)
        pieces += sum(len(answer.outputs[0].token_ids) for answer in answers)
    told = {"pieces": pieces, "took_ns": time.monotonic_ns() - begin_ns}
    answers_to.write(json.dumps(told) + "\n")
    answers_to.flush()


if __name__ == "__main__":
    main()
