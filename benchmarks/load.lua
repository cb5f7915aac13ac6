-- For wrk: sends the bodies of a file in turn, each thread starting at another one, and prints the latencies as JSON.
local bodies, threads = {}, 0
function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end
function init(args)
  for line in io.lines(args[1]) do bodies[#bodies + 1] = line end
  next_body = number * math.floor(#bodies / 2)
  wrk.method, wrk.headers["Content-Type"] = "POST", "application/json"
end
function request()
  next_body = next_body % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[next_body])
end
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('\n{"rate":%f,"p50":%f,"p99":%f,"failed":%d}\n',
    summary.requests / summary.duration * 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
