-- append_notifications(stats, key, at): appends the notifications of a task: its reply, its
-- webhook, its notice. KEYS[key] and following hold three keys for each: stream, queues, stats of
-- the queue; or channel, agents, topics for a notice. ARGV[at] and following hold for each a queue
-- ('' for a caller's private stream, a newline and a bound for the channel), the number of words,
-- and its fields and values, after agent, message and topic of a notice; or a carriage return and
-- the task whose dedup key, in KEYS, is freed; or a tab and words for the attempt log. A
-- notification that cannot be appended (because of another program's key) is counted, and does not
-- prevent the acknowledgement.
local function append_notifications(stats, key, at)
  while KEYS[key] do
    local queue, count = ARGV[at], tonumber(ARGV[at + 1])
    local words = { unpack(ARGV, at + 2, at + 1 + count) }
    local sent
    if queue == '' then
      sent = redis.pcall('XADD', KEYS[key], 'MAXLEN', '~', 10000, '*', unpack(words))
      if type(sent) == 'string' then redis.call('EXPIRE', KEYS[key], 3600) end
    elseif queue == '\r' then
      sent = ''
      if redis.pcall('GET', KEYS[key]) == words[1] then redis.call('DEL', KEYS[key]) end
    elseif queue == '\t' then
      sent = redis.pcall('XADD', KEYS[key], 'MAXLEN', '~', words[1], '*', unpack(words, 2))
    elseif string.sub(queue, 1, 1) == '\n' then
      local said, id = pcall(say, KEYS[key], KEYS[key + 1], KEYS[key + 2], string.sub(queue, 2), unpack(words))
      sent = said and id
    else
      sent = redis.pcall('XADD', KEYS[key], '*', unpack(words))
      if type(sent) == 'string' then
        redis.pcall('ZADD', KEYS[key + 1], 'NX', string.match(sent, '^%d+'), queue)
        redis.pcall('HINCRBY', KEYS[key + 2], 'published', 1)
      end
    end
    if type(sent) ~= 'string' then redis.pcall('HINCRBY', stats, 'unanswered', 1) end
    key, at = key + 3, at + 2 + count
  end
end
