-- The value of a flag is `agent @ RFC3339`; the agent's name may itself contain ' @ '.
local function holder(value)
  return string.match(value, '^(.*) @ ') or value
end
-- rfc3339(seconds): returns a unix time as RFC 3339.
-- now(): returns the server's time as RFC 3339, because agents on different hosts compare these
-- times.
local function rfc3339(seconds)
  local days = math.floor(seconds / 86400)
  local rest = seconds % 86400
  -- Convert days to a date: years start in March, so that the leap day comes last.
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524)
    - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02dZ', year, month, day,
    math.floor(rest / 3600), math.floor(rest % 3600 / 60), rest % 60)
end
local function now()
  return rfc3339(tonumber(redis.call('TIME')[1]))
end
