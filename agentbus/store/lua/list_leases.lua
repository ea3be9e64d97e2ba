#!lua flags=no-writes
-- Lists the leases that overlap path patterns; without a pattern, all leases.
-- KEYS: leases
-- ARGV: agent, its subagent ('' for none), the repository ('' for none), then the patterns
-- Returns: how many pairs of a pattern and a lease overlap that is another's, then for the first 20 pairs: number of the
--          pattern, and the lease's lines; then the same for this agent's own leases, the first one of each pattern;
--          without a pattern: 0, then for each lease 0 and its lines
--@include json
--@include overlap
--@include holder
--@include leases
local paths, reply, last = {}, { 0 }, 0
here = ARGV[3]
for i = 4, #ARGV do paths[#paths + 1] = ARGV[i] end
local found = leases(KEYS[1], clock())
local function add(n, one)
  reply[#reply + 1] = n
  reply[#reply + 1] = one.text
end
if #paths == 0 then
  for _, one in ipairs(found) do add(0, one) end
  return reply
end
local others = overlapping(found, paths, ARGV[1], ARGV[2], false)
reply[1] = #others
for at = 1, math.min(20, #others) do add(others[at][1], others[at][2]) end
for _, each in ipairs(overlapping(found, paths, ARGV[1], ARGV[2], true)) do
  if each[1] ~= last then add(each[1], each[2]) end
  last = each[1]
end
return reply
