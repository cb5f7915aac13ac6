"""Run a YAML test over HTTP, as the official runner does."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

import httpx

from benchmarks.compat.api_spec import Api, InvalidCall, build_request
from benchmarks.compat.assertions import AssertionFailed, Stash, check, holds, java_text
from benchmarks.compat.outcomes import Outcome
from benchmarks.compat.yaml_suite import Step, YamlTest, in_range, load_yaml

_TIMEOUT = 120.0
_STATUSES = {
    "bad_request": 400, "unauthorized": 401, "forbidden": 403, "missing": 404, "request_timeout": 408, "conflict": 409,
    "unavailable": 503,
}  # fmt: skip
# Arguments of `do` that are no API.
_OPTIONS = frozenset({
    "catch", "headers", "warnings", "warnings_regex", "allowed_warnings", "allowed_warnings_regex", "node_selector",
})  # fmt: skip


class YamlRunner:
    """Runs tests against one address.

    Args:
        url: Of the engine or the gateway.
        apis: APIs by name.
        product, version: Of the engine.
        check_warnings: Whether a warning that a test does not expect fails it. Tests of an older version do not know
            the warnings of a newer one.
    """

    def __init__(
        self, url: str, apis: Mapping[str, Api], *, product: str, version: str, check_warnings: bool = True
    ) -> None:
        self._client = httpx.Client(timeout=_TIMEOUT, trust_env=False)
        self._url = url
        self._apis = apis
        self._product = product
        self._version = version
        self._check_warnings = check_warnings

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def run(self, test: YamlTest) -> Outcome:
        """Run setup, steps and teardown."""
        one = _Execution(self, test.name)
        failure = one.run("setup", test.setup) or one.run("step", test.steps)
        # It must clean up after a failure too; then the first failure is the one that tells.
        cleaning_failure = one.run("teardown", test.teardown)
        failure = failure or cleaning_failure
        if failure is None:
            return Outcome("passed", answers=tuple(one.answers))
        return Outcome("failed", *failure, answers=tuple(one.answers))

    def send(
        self, api: Api, arguments: Mapping[str, Any], headers: Mapping[str, str], choose: random.Random
    ) -> httpx.Response:
        """Call an API.

        Raises:
            InvalidCall: No official client would send it.
        """
        given = {name.lower(): value for name, value in headers.items()}
        yaml = "yaml" in given.get("content-type", "")
        request = build_request(api, arguments, choose.choice, yaml=yaml)
        if request.body is not None:
            given.setdefault("content-type", request.content_type)
        # Joined here: httpx would take the path of an empty index, `//_refresh`, for a host.
        url = f"{self._url}{request.target}"
        return self._client.request(request.method, url, content=request.body, headers=given)

    def api(self, name: str) -> Api:
        """An API by name.

        Raises:
            InvalidCall: There is none.
        """
        if name not in self._apis:
            raise InvalidCall(f"there is no API [{name}]")
        return self._apis[name]

    def selects_node(self, selector: Mapping[str, Any]) -> bool:
        """Whether the only node is one of those that a step asks for."""
        return "version" not in selector or in_range(self._version, str(selector["version"]), self._product)

    @property
    def checks_warnings(self) -> bool:
        return self._check_warnings


class _Execution:
    """One run of one test: its stash and the answers it got."""

    def __init__(self, runner: YamlRunner, name: str) -> None:
        self._runner = runner
        self._stash = Stash()
        # Seeded by the test's name, so that both runs get the same requests.
        self._choose = random.Random(name)
        self._is_error = False
        self.answers: list[str] = []

    def run(self, section: str, steps: tuple[Step, ...]) -> tuple[str, str] | None:
        """Run a section; its first failed step with the reason, or None."""
        for number, (operator, argument) in enumerate(steps, 1):
            call = "" if operator != "do" else f" {[name for name in argument if name not in _OPTIONS][-1]}"
            try:
                self._step(operator, argument)
            except (AssertionFailed, InvalidCall) as error:
                return f"{section} {number}: {operator}{call}", str(error)
            except httpx.HTTPError as error:
                return f"{section} {number}: {operator}{call}", f"no answer: {error!r}"
            except Exception as error:  # a test that this runner cannot run must not end all others
                return f"{section} {number}: {operator}{call}", f"the runner cannot do it: {error!r}"
        return None

    def _step(self, operator: str, argument: Any) -> None:
        if operator == "do":
            self._do(argument)
        elif operator == "set":
            for path, name in argument.items():
                self._stash.set(name, self._stash.lookup(path))
        else:
            check(operator, argument, self._stash)

    def _do(self, argument: Mapping[str, Any]) -> None:
        catch = argument.get("catch")
        if catch == "param":
            return  # Clients refuse it before they send anything, and there is no client here.
        # A few tests name two calls in one step. The official runner makes the last one.
        name = [name for name in argument if name not in _OPTIONS][-1]
        arguments = self._stash.replace(argument[name] or {})
        if not self._runner.selects_node(argument.get("node_selector") or {}):
            raise InvalidCall("no node is as the step's node_selector says")
        headers = {key: str(value) for key, value in self._stash.replace(argument.get("headers") or {}).items()}
        answer = self._runner.send(self._runner.api(name), arguments, headers, self._choose)
        self._keep(answer)
        self._check_status(answer, catch, arguments.get("ignore"))
        if self._runner.checks_warnings:
            _check_warnings(_warnings(answer), argument)

    def _keep(self, answer: httpx.Response) -> None:
        content_type = answer.headers.get("content-type", "no content type")
        self.answers.append(" ".join((str(answer.status_code), content_type, *sorted(_warnings(answer)))))
        if answer.request.method == "HEAD":
            self._stash.body = answer.status_code < 400
        elif "json" in content_type and answer.content:
            self._stash.body = answer.json()
        elif "yaml" in content_type:
            self._stash.body = load_yaml(answer.content)
        else:
            self._stash.body = answer.text

    def _check_status(self, answer: httpx.Response, catch: str | None, ignore: Any) -> None:
        status = answer.status_code
        ignored = {int(each) for each in (ignore if isinstance(ignore, list) else [ignore]) if each is not None}
        if answer.request.method == "HEAD":
            ignored.add(404)
        is_error = status >= 400 and status not in ignored
        if catch is None:
            if is_error:
                raise AssertionFailed(f"answered {status}: {answer.text[:500]}")
        elif not is_error:
            raise AssertionFailed(f"expected an error ({catch}), got {status}")
        elif catch.startswith("/"):
            error = self._stash.body.get("error") if isinstance(self._stash.body, Mapping) else self._stash.body
            if not re.search(catch.strip()[1:-1], java_text(error)):
                raise AssertionFailed(f"expected {catch}, got {java_text(error)[:500]}")
        elif catch in _STATUSES:
            if status != _STATUSES[catch]:
                raise AssertionFailed(f"expected {catch}, got {status}: {answer.text[:500]}")
        elif catch != "request" or status in _STATUSES.values():
            raise AssertionFailed(f"expected {catch}, got {status}: {answer.text[:500]}")


def _warnings(answer: httpx.Response) -> list[str]:
    """Texts of the answer's warnings: `299 OpenSearch-3.6.0 "text"` without its date."""
    texts = []
    for value in answer.headers.get_list("warning"):
        _, _, rest = value.partition('"')
        text = rest.replace('\\"', "\0").partition('"')[0]
        texts.append(text.replace("\0", '"'))
    return texts


def _check_warnings(warnings: list[str], options: Mapping[str, Any]) -> None:
    expected = set(options.get("warnings") or ())
    expressions = options.get("warnings_regex") or ()
    allowed = expected | set(options.get("allowed_warnings") or ())
    allowed_expressions = [*expressions, *(options.get("allowed_warnings_regex") or ())]
    unexpected = [
        text for text in warnings if text not in allowed and not any(holds(each, text) for each in allowed_expressions)
    ]
    if unexpected:
        raise AssertionFailed(f"unexpected warnings: {unexpected}")
    missing = [each for each in expected if each not in warnings]
    missing += [each for each in expressions if not any(holds(each, text) for text in warnings)]
    if missing:
        raise AssertionFailed(f"missing warnings: {missing}")
