#!lua flags=allow-oom
-- Records how far a consumer is, for the relays of all ledgers that publish to its stream.
-- KEYS: stream, relay, readers
-- ARGV: its name among the readers, its checkpoint, the lowest id that it needs
-- Returns: the lowest id that it or any other reader needs
--@include ids
--@include lowest_of_readers
--@include stream
--@include events
local info = stream(KEYS[1])
local last, added = info['last-generated-id'], info['entries-added']
if newer(ARGV[2], last) and plausible(ARGV[2]) then
  -- The server lost entries that the consumer has passed: new ones must have higher ids.
  local floor = redis.call('HGET', KEYS[2], 'floor')
  if not floor or not is_id(floor) or newer(ARGV[2], floor) then redis.call('HSET', KEYS[2], 'floor', ARGV[2]) end
  local time = redis.call('TIME')
  local now = string.format('%d%03d-0', time[1], math.floor(time[2] / 1000))
  if added > 0 and not newer(now, ARGV[2]) then
    -- The server's clock went back, so that new events may already have lower ids: have relays publish all again.
    redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', 0)
    redis.call('HSET', KEYS[2], 'gone', added)
    published_anew(KEYS[2], '')
  end
end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
return lowest_of_readers(KEYS[3], ARGV[3])
