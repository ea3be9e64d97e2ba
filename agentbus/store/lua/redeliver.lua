#!lua
-- Delivers acknowledged tasks to their group again, in order; pending ones are left alone.
-- KEYS: stream, retries, attempts, stats, bell, cancelled, the retry stream, the index of moved tasks
-- ARGV: group, id to continue from, last id, number to examine, number to deliver, the consumer that holds deferred
--       tasks, when the one before is due in ms, 1 only to count, the suffix of task ids; cancelled ones are left out
-- Returns: {id to continue from ('' at the end), how many, the first one's id or '', the last one's or '', how many
--          are pending, when the last one is due in ms}
--@include page
--@include moved_entry
local ids, onwards = page(KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4]))
if #ids == 0 then return { '', 0, '', '', 0, ARGV[7] } end
local held, from, pending = {}, ids[1], nil
repeat
  pending = redis.call('XPENDING', KEYS[1], ARGV[1], from, ids[#ids], #ids)
  for _, entry in ipairs(pending) do
    held[entry[1]] = true
    from = '(' .. entry[1]
  end
until #pending < #ids
local chosen, busy, most = {}, 0, tonumber(ARGV[5])
for _, id in ipairs(ids) do
  if held[id] or moved_entry(KEYS[8], KEYS[7], id .. ARGV[9], ARGV[1]) then
    busy = busy + 1
  elseif not redis.call('HGET', KEYS[6], id .. ARGV[9]) and #chosen < most then
    chosen[#chosen + 1] = id
  end
end
local due = tonumber(ARGV[7])
if ARGV[8] ~= '1' and #chosen > 0 then
  local words = { unpack(chosen) }
  words[#words + 1] = 'FORCE'
  words[#words + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[6], 0, unpack(words))
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  -- Spread the due times up to now, to keep the order: as text, 1-10 sorts before 1-2.
  due = math.max(now - #chosen * 0.0005, due)
  for _, id in ipairs(chosen) do
    due = due + 0.0005
    redis.call('ZADD', KEYS[2], string.format('%.4f', due), id)
    -- Start counting attempts again with the next run.
    redis.call('HSET', KEYS[3], id, 0)
  end
  redis.pcall('HINCRBY', KEYS[4], 'redelivered', #chosen)
  redis.call('XADD', KEYS[5], 'MAXLEN', 1, '*', 'due', string.format('%d', now))
end
return { onwards, #chosen, chosen[1] or '', chosen[#chosen] or '', busy, string.format('%.4f', due) }
