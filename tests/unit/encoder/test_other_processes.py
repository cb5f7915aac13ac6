"""An encoder and a reranker work in forked processes, in spawned ones, and in many threads, and no process hangs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.reranker import Reranker
from es_sbert.errors import DeviceError, ModelError, UsageError
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime.device import Device
from es_sbert.runtime.variant_candidates import default_exports
from tests.conftest import free_port
from tests.raised import raises_as_recorded
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import export_small_reranker

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")

TEXTS = [f"text {number} {'word ' * (number % 40)}" for number in range(120)]
LIMIT = 60  # seconds; a process that hangs is killed then

# Opens models and gives them to other processes: prints the smallest cosine, or the error, of each.
PROGRAM = """
import copy, multiprocessing, os, queue, sys, threading
import numpy as np
from es_sbert import Encoder, Reranker
from es_sbert.errors import EsSbertError

TEXTS = [f"text {number} {'word ' * (number % 40)}" for number in range(120)]

def embed(encoder, reranker, answers):
    try:
        answers.put((encoder.encode(TEXTS), reranker.predict("a text", TEXTS)))
    except EsSbertError as error:
        answers.put(type(error).__name__)

if __name__ == "__main__":
    runtime, model, cross_encoder = sys.argv[1:]
    encoders = [Encoder(model, runtime=runtime, threads=2) for _ in range(2)]
    reranker = Reranker(cross_encoder, runtime="onnxruntime")
    expected, scores = [each.encode(TEXTS) for each in encoders][0], reranker.predict("a text", TEXTS)
    copied = copy.deepcopy(encoders[0])  # what OpenVINO keeps of a model that was dropped is a trap for the next one
    assert (copied.encode(TEXTS) == expected).all()
    del copied
    stop = threading.Event()
    busy = threading.Thread(target=lambda: [encoders[1].encode(TEXTS) for _ in iter(stop.is_set, True)])
    busy.start()
    try:
        for method in ("fork", "spawn", "forkserver", "fork"):
            context = multiprocessing.get_context(method)
            answers = context.Queue()
            process = context.Process(target=embed, args=(encoders[0], reranker, answers), daemon=True)
            process.start()
            try:
                answer = answers.get(timeout=40)
                if not isinstance(answer, str):
                    assert np.abs(answer[1] - scores).max() < 1e-5
                    answer = float((answer[0] * expected).sum(axis=1).min())
            except queue.Empty:
                answer = "hangs"
            process.join(20)
            print(method, answer, "runs on" if process.exitcode is None else process.exitcode, flush=True)
        os.chdir("/")
        if not os.fork():
            sys.exit(0 if len(reranker.predict("a text", TEXTS)) else 1)  # with the end of an ordinary process
        print("exit", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    finally:
        stop.set()
        busy.join()
"""


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_small_reranker(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def bundle(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "all-variants"
    export_bundle(read_sentence_model(tiny), folder, default_exports(), force=True)
    return folder


@pytest.mark.parametrize("model", ["a folder", "a folder on onnxruntime", "a bundle"])
def test_models_work_in_every_kind_of_process(
    model: str, tiny: Path, bundle: Path, cross_encoder: Path, tmp_path: Path
) -> None:
    folder = bundle if model == "a bundle" else tiny
    runtime = "onnxruntime" if model == "a folder on onnxruntime" else "auto"
    with Encoder(folder, runtime=runtime) as encoder:
        uses_openvino = encoder.info.runtime == "openvino"
    (tmp_path / "program.py").write_text(PROGRAM)
    # A relative path: a process in another working directory has to find the model, too.
    command = [sys.executable, str(tmp_path / "program.py"), runtime, folder.name, str(cross_encoder)]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=4 * LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [method for method, _ in lines] == ["fork", "spawn", "forkserver", "fork", "exit"], done.stderr
    for method, answer in lines:
        if method == "exit":
            assert answer == "0"
        elif method == "fork" and uses_openvino and folder is tiny:
            assert answer == "DeviceError 0"  # nothing is exported in a forked process
        else:
            cosine, exit_code = answer.split()
            # onnxruntime runs the model in place of OpenVINO; random weights lose more by int8 than trained ones.
            assert float(cosine) > (0.9 if method == "fork" and uses_openvino else 0.99999), answer
            assert exit_code == "0"


WSGI = """
import json, os
from es_sbert import Encoder

encoder = Encoder(os.environ["MODEL"])
expected = encoder.encode(["a text", "another"] * 100)

def app(environ, start_response):
    cosine = float((encoder.encode(["a text", "another"] * 100) * expected).sum(axis=1).min())
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"cosine": cosine, "process": os.getpid()}).encode()]
"""


def test_gunicorn_preloads_an_encoder(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "site_app.py").write_text(WSGI)
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w2", "-b", f"127.0.0.1:{port}", "site_app:app"]
    server = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "MODEL": str(bundle)}, stderr=subprocess.PIPE, text=True
    )
    try:
        answers = [_get(f"http://127.0.0.1:{port}/", server) for _ in range(20)]
    finally:
        server.send_signal(signal.SIGTERM)
        messages = server.communicate(timeout=LIMIT)[1]
    assert min(answer["cosine"] for answer in answers) > 0.9
    assert server.returncode == 0
    assert "WORKER TIMEOUT" not in messages
    assert "SIGKILL" not in messages


def _get(url: str, server: subprocess.Popen[str]) -> Any:
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            with urlopen(url, timeout=LIMIT) as response:
                return json.load(response)
        except OSError:
            assert server.poll() is None, "gunicorn ended"
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_threads_share_an_encoder_without_errors(encoder: Encoder) -> None:
    expected = encoder.encode(TEXTS)
    results: list[Any] = []

    def work(first: int) -> None:
        try:
            results.append(np.abs(encoder.encode(TEXTS[first:]) - expected[first:]).max())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    before = threading.active_count()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(results) == 32
    assert max(results) < 1e-5
    assert threading.active_count() <= before + 2  # the encoder has no more threads than it was opened with


def test_stream_from_before_a_fork_is_refused_there_and_goes_on_here(encoder: Encoder) -> None:
    stream, dropped = (encoder.encode_stream(TEXTS, window=16) for _ in range(2))
    next(stream), next(dropped)
    if not (process := os.fork()):
        signal.alarm(LIMIT)
        try:
            dropped.close()
            next(stream)
        except UsageError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(process, 0)[1] == 0
    assert sum(len(part.vectors) for part in stream) == len(TEXTS) - 16


def test_unpickled_encoder_is_closed_on_its_own(encoder: Encoder) -> None:
    with pickle.loads(pickle.dumps(encoder)) as copied:
        assert copied.info.fingerprint == encoder.info.fingerprint
        assert (copied.encode("a text") == encoder.encode("a text")).all()
    assert encoder.encode("a text").shape == (encoder.info.dimensions,)


def test_pickle_of_another_model_is_refused(tmp_path: Path) -> None:
    with Encoder(write_tiny_bert(tmp_path / "model"), precision="fp32") as encoder:
        pickled = pickle.dumps(encoder)
    shutil.rmtree(tmp_path / "model")
    write_tiny_bert(tmp_path / "model", seed=2)
    with raises_as_recorded(ModelError):
        pickle.loads(pickled)


def test_another_model_is_refused_after_a_fork(tmp_path: Path) -> None:
    with Encoder(write_tiny_bert(tmp_path / "model"), precision="fp32") as encoder:
        shutil.rmtree(tmp_path / "model")
        write_tiny_bert(tmp_path / "model", seed=2)
        encoder.pipeline._inherit()  # as in a forked process
        with raises_as_recorded(ModelError):
            encoder.encode("a text")


def test_cuda_is_refused_after_a_fork(cross_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Reranker(cross_encoder) as reranker:
        monkeypatch.setattr(reranker, "_selected", replace(vars(reranker)["_selected"], device=Device("cuda", 1)))
        reranker._inherit()  # as in a forked process
        with raises_as_recorded(DeviceError):
            reranker.predict("a", ["b"])
