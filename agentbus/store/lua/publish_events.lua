#!lua
-- Publishes events of an outbox under ascending ids, if the server is in the state that the relay expects.
-- KEYS: stream, relay
-- ARGV: the ledger, the relay's fencing token and owner, the last id that the ledger published, the highest id in
--       the ledger, 1 to remove events published before, bound, then for each event number of words that follow,
--       its fields and values
-- Returns: {'added', id, …}, fewer ids where the bound is met; {'stale', token} if there is a newer relay;
--          {'moved', id} if the last id differs
--@include ids
--@include stream
--@include events
local call, key, relay, ledger, floor = redis.call, KEYS[1], KEYS[2], ARGV[1], ARGV[5]
local token = overtaken(relay, ledger, ARGV[2], ARGV[3])
if token then return { 'stale', token } end
local info = stream(key)
local last, added = info['last-generated-id'], info['entries-added']
local own = last_of(relay, ledger, last)
if own ~= ARGV[4] then return { 'moved', own } end
if ARGV[6] == '1' and added > 0 then
  call('XTRIM', key, 'MAXLEN', '=', 0)
  call('HSET', relay, 'gone', added)
  published_anew(relay, ledger)
end
-- A consumer with another database may have passed higher ids than this ledger knows.
local passed = call('HGET', relay, 'floor')
if passed and plausible(passed) and newer(passed, floor) then floor = passed end
local room = tonumber(ARGV[7]) - (added > 0 and call('XLEN', key) or 0)
local reply, at = { 'added' }, 8
call('HSET', relay, 'token.' .. ledger, ARGV[2], 'owner.' .. ledger, ARGV[3])
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
  last = call('XADD', key, id, unpack(ARGV, at + 1, at + words))
  reply[#reply + 1] = last
  at, room = at + 1 + words, room - 1
end
if #reply > 1 then call('HSET', relay, 'last.' .. ledger, last) end
return reply
