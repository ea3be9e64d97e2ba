#!lua flags=no-writes
-- Reads the metrics stream backwards for reports of relays and event consumers.
-- KEYS: metrics
-- ARGV: the id to begin before ('+': the newest), the id to stop at, how many entries to examine
-- Returns: {the server's time in ms, where to begin next ('' at the end), then for each entry that they wrote its
--          id, stream, role, lag_ms, lag_events_count, unknown_event_type, gone, parked_events and last_error, '' for absent ones}
local time = redis.call('TIME')
local found = { tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000), '' }
if redis.call('TYPE', KEYS[1])['ok'] ~= 'stream' then return found end
local page = redis.call('XREVRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
for _, entry in ipairs(page) do
  if entry[2][2] == 'events' and entry[2][1] == 'kind' then
    local said = {}
    for i = 1, #entry[2] - 1, 2 do said[entry[2][i]] = entry[2][i + 1] end
    found[#found + 1] = { entry[1], said['stream'] or '', said['role'] or '', said['lag_ms'] or '',
      said['lag_events_count'] or '', said['unknown_event_type'] or '', said['gone'] or '',
      said['parked_events'] or '', said['last_error'] or '' }
  end
end
if #page == tonumber(ARGV[3]) then found[2] = '(' .. page[#page][1] end
return found
