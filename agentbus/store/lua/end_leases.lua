#!lua flags=allow-oom
-- Ends leases early, and wakes agents that wait for them.
-- KEYS: leases, bell, once slot
-- ARGV: agent, its subagent ('' for the agent itself, which may also end those of its subagents), 1 to end others' too, the prefix of the agent's peers' names, before a number ('' if none), 1 for all
--       leases of the agent, token, the repository of the patterns ('' for none), then for each: pattern, and its fencing token ('' for any)
-- Returns: how many have ended, their lines, then for each pattern that had none to end: its number, and the lines of
--          another agent's lease of it ('' for none)
--@include json
--@include once
--@include overlap
--@include holder
--@include leases
local before = already(KEYS[3], ARGV[6])
if before then return before end
here = ARGV[7]
local found, over = leases(KEYS[1], clock())
local function ends(one)
  return owns(one, ARGV[1], ARGV[2]) or ARGV[3] == '1' or (ARGV[4] ~= '' and string.sub(one.agent, 1, #ARGV[4]) == ARGV[4]
    and string.find(string.sub(one.agent, #ARGV[4] + 1), '^%d+$'))
end
local reply, ended, missing = {}, 0, {}
local function drop(one)
  over[#over + 1] = one.field
  reply[#reply + 1] = one.text
  ended = ended + 1
end
for _, one in ipairs(found) do
  if ARGV[5] == '1' and owns(one, ARGV[1], ARGV[2]) then drop(one) end
end
for i = 8, #ARGV, 2 do
  local dropped, held = false, ''
  for _, one in ipairs(found) do
    if one.path == ARGV[i] and (ARGV[i + 1] ~= '' or together(one)) then
      if ends(one) and (ARGV[i + 1] == '' or one.token == ARGV[i + 1]) then
        drop(one)
        dropped = true
      elseif not owns(one, ARGV[1], ARGV[2]) then
        held = one.text
      end
    end
  end
  if not dropped then
    missing[#missing + 1] = math.floor((i - 6) / 2)
    missing[#missing + 1] = held
  end
end
delete(KEYS[1], over)
if ended > 0 then ring(KEYS[2]) end
table.insert(reply, 1, ended)
for _, word in ipairs(missing) do reply[#reply + 1] = word end
return keep(KEYS[3], ARGV[6], reply)
