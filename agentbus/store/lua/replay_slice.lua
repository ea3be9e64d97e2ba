#!lua
-- Publishes a slice of a replay to a queue or the channel, and moves the replay's cursor past it.
-- KEYS: target stream, the replay, then for a queue: queues, stats, order, metrics, readers; for the channel: topics
-- ARGV: queue ('' for the channel), bound, the cursor's field, the run's field, the id that the slice follows ('' for
--       none), 1 if this is the last try, seconds to keep the replay, number of entries, their ids (joined by
--       blanks), the last of these, how many fields the entries have in common (0: each has its own), these fields;
--       then for each entry its values, or, where each has its own fields, its ordering key or topic ('' for none),
--       number of words that follow, its fields and values
-- Returns: {'done' or 'full', how many of the entries are before the cursor now}; {'behind'} if the cursor is not at
--          the slice yet, {'gone'} if there is no such replay
--@include ids
--@include lowest_of_readers
--@include undelivered
--@include lowest_needed
--@include order
--@include count_refused
--@include say
local call, place_to, replay, queue, bound = redis.call, KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
if call('EXISTS', replay) == 0 then return { 'gone' } end
local cursor = call('HGET', replay, ARGV[3])
local number, width, ids = tonumber(ARGV[8]), tonumber(ARGV[11]), nil
-- The preceding slice was not published, and must not be skipped.
if ARGV[5] ~= '' and cursor ~= ARGV[5] and (not cursor or newer(ARGV[5], cursor)) then return { 'behind' } end
local function id(n)
  if not ids then
    ids = {}
    for one in string.gmatch(ARGV[9], '%S+') do ids[#ids + 1] = one end
  end
  return ids[n]
end
local passed = 0
if cursor and cursor ~= ARGV[5] then
  if not newer(ARGV[10], cursor) then
    passed = number
  else
    while not newer(id(passed + 1), cursor) do passed = passed + 1 end
  end
end
local left, sent = number - passed, nil
local fits, free, undone = left, true, 0
if queue ~= '' and left > 0 then free, undone = room(place_to, bound, left, KEYS[7]) end
if not free then
  fits = math.max(0, bound - undone)
  if ARGV[6] == '1' and fits == 0 then count_refused(KEYS[6], KEYS[4], 100000, queue, left) end
end
local published = 0
-- An entry that cannot be written ends the slice; the cursor moves past the entries already
-- published.
if width > 0 then
  local xadd = { 'XADD', place_to, '*' }
  if queue == '' then xadd = { 'XADD', place_to, 'MAXLEN', '~', bound, '*' } end
  local head, at = #xadd, 11 + width * (passed + 1)
  for i = 1, width do xadd[head + 2 * i - 1] = ARGV[11 + i] end
  while published < fits do
    for i = 1, width do xadd[head + 2 * i] = ARGV[at + i] end
    sent = redis.pcall(unpack(xadd))
    if type(sent) ~= 'string' then break end
    published, at = published + 1, at + width
  end
else
  local at = 12
  for _ = 1, passed do at = at + 2 + tonumber(ARGV[at + 1]) end
  while published < fits do
    local key, words = ARGV[at], tonumber(ARGV[at + 1])
    if queue ~= '' then
      sent = redis.pcall('XADD', place_to, '*', unpack(ARGV, at + 2, at + 1 + words))
    else
      sent = redis.pcall('XADD', place_to, 'MAXLEN', '~', bound, '*', unpack(ARGV, at + 2, at + 1 + words))
    end
    if type(sent) ~= 'string' then break end
    if key ~= '' and queue ~= '' then redis.pcall('ZADD', KEYS[5], 0, order_member(key, sent)) end
    if key ~= '' and queue == '' then touch(KEYS[3], key, tostring(tonumber(string.match(sent, '^%d+')) / 1000)) end
    published, at = published + 1, at + 2 + words
  end
end
if published > 0 then
  call('HSET', replay, ARGV[3], published == left and ARGV[10] or id(passed + published))
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
