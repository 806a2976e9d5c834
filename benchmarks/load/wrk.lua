-- wrk's side of wrk.py: plays requests of a file, in turn, and prints one line of JSON when done.
-- The file: for each request a line with its length in bytes, then the request.
local requests, position = {}, 0

function init(args)
   local file = assert(io.open(args[1], "rb"))
   for length in function() return file:read("*n") end do
      file:read(1)
      requests[#requests + 1] = file:read(length)
   end
   file:close()
   position = tonumber(args[2]) % #requests
end

function request()
   position = position % #requests + 1
   return requests[position]
end

function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '\n{"requests": %d, "seconds": %.6f, "p50_us": %.0f, "p99_us": %.0f, "errors": %d}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
      errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
