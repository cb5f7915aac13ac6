// For k6: requests at a constant rate, independent of earlier responses.
import http from "k6/http";
import { check } from "k6";
import exec from "k6/execution";

const bodies = open(__ENV.BODIES).trim().split("\n");
export const options = {
  discardResponseBodies: true,
  summaryTrendStats: ["med", "p(99)"],
  scenarios: {
    steady: {
      executor: "constant-arrival-rate", rate: Number(__ENV.RATE), timeUnit: "1s", duration: __ENV.DURATION,
      preAllocatedVUs: Number(__ENV.CONNECTIONS), maxVUs: Number(__ENV.CONNECTIONS),
    },
  },
};
export default function () {
  const body = bodies[exec.scenario.iterationInTest % bodies.length];
  const answer = http.post(__ENV.URL, body, { headers: { "Content-Type": "application/json" } });
  check(answer, { answered: (got) => got.status === 200 });
}
export function handleSummary(data) {
  const figure = (name, value) => (data.metrics[name] ? data.metrics[name].values[value] : 0);
  return { stdout: JSON.stringify({
    rate: figure("http_reqs", "rate"), p50: figure("http_req_duration", "med"),
    p99: figure("http_req_duration", "p(99)"),
    failed: figure("checks", "fails") + figure("dropped_iterations", "count"),
  }) };
}
