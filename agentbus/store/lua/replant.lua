#!lua
-- Publishes a slice of a replay to a queue or the channel, and moves the replay's cursor past it.
-- KEYS: target stream, the replay, then for a queue: queues, stats, order, metrics, readers; for the channel: topics
-- ARGV: queue ('' for the channel), bound, the cursor's field, the run's field, the id that the slice follows ('' for
--       none), 1 if this is the last try, seconds to keep the replay, then for each entry its id, its ordering key or
--       topic ('' for none), how many words follow, its fields and values
-- Returns: {'done' or 'full', how many of the entries are before the cursor now}; {'behind'} if the cursor is not at
--          the slice yet, {'gone'} if there is no such replay
--@include ids
--@include least
--@include undelivered
--@include needed
--@include order
--@include refused
--@include say
local call, place_to, replay, queue, bound = redis.call, KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
if call('EXISTS', replay) == 0 then return { 'gone' } end
local cursor = call('HGET', replay, ARGV[3])
-- The slice before this one was not published, and must not be skipped.
if ARGV[5] ~= '' and (not cursor or newer(ARGV[5], cursor)) then return { 'behind' } end
local at, last, passed, left = 8, #ARGV, 0, 0
while cursor and at <= last and not newer(ARGV[at], cursor) do
  passed, at = passed + 1, at + 3 + tonumber(ARGV[at + 2])
end
local from = at
while at <= last do left, at = left + 1, at + 3 + tonumber(ARGV[at + 2]) end
local fits, published, sent = left, 0, nil
local free, undone = true, 0
if queue ~= '' and left > 0 then free, undone = room(place_to, bound, left, KEYS[7]) end
if not free then
  fits = math.max(0, bound - undone)
  if ARGV[6] == '1' and fits == 0 then refused(KEYS[6], KEYS[4], 100000, queue, left) end
end
at = from
while published < fits do
  local key, words = ARGV[at + 1], tonumber(ARGV[at + 2])
  -- An entry that cannot be written ends the slice; the cursor moves past those already published.
  if queue ~= '' then
    sent = redis.pcall('XADD', place_to, '*', unpack(ARGV, at + 3, at + 2 + words))
  else
    sent = redis.pcall('XADD', place_to, 'MAXLEN', '~', bound, '*', unpack(ARGV, at + 3, at + 2 + words))
  end
  if type(sent) ~= 'string' then break end
  if key ~= '' and queue ~= '' then redis.pcall('ZADD', KEYS[5], 0, place(key, sent)) end
  if key ~= '' and queue == '' then touch(KEYS[3], key, tostring(tonumber(string.match(sent, '^%d+')) / 1000)) end
  cursor, published, at = ARGV[at], published + 1, at + 3 + words
end
if published > 0 then
  call('HSET', replay, ARGV[3], cursor)
  call('HINCRBY', replay, 'published', published)
  call('HINCRBY', replay, ARGV[4], published)
  if queue ~= '' then
    redis.pcall('HINCRBY', KEYS[4], 'published', published)
    redis.pcall('ZADD', KEYS[3], 'NX', call('TIME')[1] .. '000', queue)
  end
elseif type(sent) == 'table' then
  return sent
end
call('EXPIRE', replay, ARGV[7])
return { published == left and 'done' or 'full', passed + published }
