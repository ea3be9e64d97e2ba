#!lua
-- Publishes events of an outbox under ascending ids, if the server is in the state that the relay expects.
-- KEYS: stream, relay
-- ARGV: the relay's fencing token, the last id that it knows, the highest id in its ledger, 1 to remove events
--       published before, bound, then for each event number of words that follow, its fields and values
-- Returns: {'added', id, …}, fewer ids where the bound is met; {'stale', token} if there is a newer relay;
--          {'moved', id} if the last id differs
--@include ids
local call, stream, relay, floor = redis.call, KEYS[1], KEYS[2], ARGV[3]
local token = call('HGET', relay, 'token')
if token and tonumber(token) > tonumber(ARGV[1]) then return { 'stale', token } end
local last, added = '0-0', 0
if call('EXISTS', stream) == 1 then
  local info = call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
    if info[i] == 'entries-added' then added = info[i + 1] end
  end
end
if last ~= ARGV[2] then return { 'moved', last } end
if ARGV[4] == '1' and added > 0 then
  call('XTRIM', stream, 'MAXLEN', '=', 0)
  call('HSET', relay, 'gone', added)
end
local room = tonumber(ARGV[5]) - (added > 0 and call('XLEN', stream) or 0)
local reply, at = { 'added' }, 6
call('HSET', relay, 'token', ARGV[1])
while at <= #ARGV and room > 0 do
  local words, id = tonumber(ARGV[at]), '*'
  if newer(floor, last) then
    -- The server lost data, or its clock went back: choose a higher id, since consumers have passed
    -- its next ids.
    local time = call('TIME')
    id = string.format('%d%03d-0', time[1], math.floor(time[2] / 1000))
    if not newer(id, floor) then
      local ms, seq = string.match(floor, '^(%d+)%-(%d+)$')
      id = string.format('%s-%d', ms, tonumber(seq) + 1)
    end
  end
  last = call('XADD', stream, id, unpack(ARGV, at + 1, at + words))
  reply[#reply + 1] = last
  at, room = at + 1 + words, room - 1
end
return reply
