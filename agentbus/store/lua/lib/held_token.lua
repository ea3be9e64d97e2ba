-- held_token(key, value): returns the token of the hold with this value, false if it has none: another program, which gives none,
-- announced the flag after the hold with the stored token. A token is at least the clock in ms when its hold began.
local function held_token(key, value)
  local token = stored_token(key)
  local at = value and string.match(value, ' @ (%d+%-%d%d%-%d%dT%d%d:%d%d:%d%dZ)$')
  if not (at and token and tonumber(token)) then return false end
  -- A second may begin between the token and the value.
  local latest = rfc3339(math.floor(tonumber(token) / 1000) + 1)
  return (#at < #latest or at <= latest) and token
end
