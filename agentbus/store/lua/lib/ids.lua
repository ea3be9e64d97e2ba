-- is_id(id): returns whether a text is an entry id: two numbers of 64 bits.
-- newer(a, b): returns whether stream id a is greater than b. It compares digits, since Lua's
-- numbers hold only 53 of 64 bits.
local function parts(id)
  local ms, seq = string.match(id, '^0*(%d*)%-0*(%d*)$')
  if not ms then ms, seq = string.match(id, '^0*(%d*)$'), '' end
  return ms, seq
end
local function longer(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end
local function is_id(id)
  local ms, seq = parts(id)
  return string.find(id, '^%d+%-%d+$') and not longer(ms, '18446744073709551615') and not longer(seq, '18446744073709551615')
end
local function newer(a, b)
  local a_ms, a_seq = parts(a)
  local b_ms, b_seq = parts(b)
  if a_ms ~= b_ms then return longer(a_ms, b_ms) end
  return a_seq ~= b_seq and longer(a_seq, b_seq)
end
