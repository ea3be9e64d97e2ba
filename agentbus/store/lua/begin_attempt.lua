#!lua flags=allow-oom
-- Counts an attempt at a redelivered task, or at a task that may run only once, before its handler starts.
-- KEYS: stream, attempts, cancelled, runs
-- ARGV: group, consumer, id, number of uncounted attempts, token of this attempt, 1 if every
--       attempt is counted before it starts (a number without a token then comes from a worker that
--       died earlier), the task's name among the cancelled, seconds to keep the record of its runs,
--       the record of this run as JSON without its beginning and end
-- Returns: the number of this attempt, 0 if this consumer no longer holds the task, or -1 if the
--          task was cancelled
--@include json
--@include owner
--@include runs
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3], KEYS[2]) then
  -- The holder before the reclaim may have taken the task back, and finished it without knowing of
  -- a count.
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1) == 0 then redis.call('HDEL', KEYS[2], ARGV[3]) end
  return 0
end
if type(redis.pcall('HGET', KEYS[3], ARGV[7])) == 'string' then return -1 end
-- A request that was resent after a lost reply does not count another attempt.
local number, token = string.match(redis.call('HGET', KEYS[2], ARGV[3]) or ARGV[4], '^(%d+) ?(.*)$')
if token == ARGV[5] then return tonumber(number) end
local holder = string.match(token, '^%?(.*)$')
if ARGV[6] == '1' and (token == '' or holder) then number = 0 end
redis.call('HSET', KEYS[2], ARGV[3], string.format('%d %s', number + 1, ARGV[5]))
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local runs, open = latest_run(KEYS[4])
local before = open and tonumber(string.match(open, '^{"attempt":(%d+),'))
local lost = ',"outcome":"lost"}'
if before == number + 1 then
  -- The worker gave the task back before its handler started.
  runs = runs - 1
elseif before then
  record(KEYS[4], runs, string.sub(open, 1, -2) .. lost, 'lost', ARGV[8])
elseif holder and tonumber(number) > 0 then
  runs = runs + 1
  local worker = cjson.encode(holder)
  record(KEYS[4], runs, string.format('{"attempt":%d,"worker":%s,"agent_id":null', number, worker) .. lost, 'lost', ARGV[8])
end
local run = string.format('{"attempt":%d,%s,"began":%d}', number + 1, ARGV[9], now)
record(KEYS[4], runs + 1, run, 'running', ARGV[8])
return number + 1
