"""Whether the onnxruntime inside OpenSearch's ml-commons gives the model's vectors.

    python -m venv old && old/bin/pip install 'onnxruntime==1.16.3' 'numpy<2' tokenizers
    python -m benchmarks.opensearch_ml --runtime old/bin/python [--model all-MiniLM-L6-v2]

The package is made, run by the old runtime on texts of all lengths, one at a time as ml-commons does, and compared with
`Encoder` in fp32.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import click
import numpy as np

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder
from es_sbert.exporters.opensearch_ml import ZIP_NAME, export_opensearch_ml
from es_sbert.exporters.parity import parity_sentences

# Runs where es-sbert is not installed.
_OLD = """
import json, sys, zipfile
import numpy as np, onnxruntime
from tokenizers import Tokenizer
package, texts, output = sys.argv[1:]
archive = zipfile.ZipFile(package)
session = onnxruntime.InferenceSession(archive.read("model.onnx"), providers=["CPUExecutionProvider"])
tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
vectors = []
for text in json.load(open(texts)):
    encoding = tokenizer.encode(text)
    inputs = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask}
    vectors.append(session.run(None, {name: np.array([row], np.int64) for name, row in inputs.items()})[0][0])
np.save(output, np.array(vectors))
print(onnxruntime.__version__)
"""


@click.command()
@click.option("--runtime", required=True, metavar="PYTHON", help="An interpreter with the old onnxruntime.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--texts", "count", default=200, show_default=True)
def main(runtime: str, model: str, count: int) -> None:
    """Print the largest difference of one coordinate."""
    source = read_sentence_model(resolve_model(model), model)
    texts = parity_sentences(source.max_tokens)[:count]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        export_opensearch_ml(source, folder / "package")
        (folder / "texts.json").write_text(json.dumps(texts))
        arguments = [folder / "package" / ZIP_NAME, folder / "texts.json", folder / "vectors.npy"]
        done = subprocess.run([runtime, "-c", _OLD, *map(str, arguments)], capture_output=True, text=True, check=True)
        old = np.load(folder / "vectors.npy")  # (texts, dimensions)
    with Encoder(model, device="cpu", precision="fp32") as encoder:
        new = encoder.encode(texts)  # (texts, dimensions)
    difference = float(np.abs(old - new).max())
    click.echo(f"onnxruntime {done.stdout.strip()}: {len(texts)} texts, largest difference {difference:.1e}")


if __name__ == "__main__":
    main()
