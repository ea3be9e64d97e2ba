-- latest_run(key): returns the number of recorded runs of a task, and the newest record if that run
-- has not ended. A corrupted record does not prevent an acknowledgement.
local function latest_run(key)
  local number = redis.pcall('HGET', key, 'n')
  number = type(number) == 'string' and tonumber(number) or 0
  if number == 0 then return 0, nil end
  local record = redis.pcall('HGET', key, number)
  if type(record) ~= 'string' or string.find(record, '"outcome"', 1, true) then return number, nil end
  return number, record
end
-- has_steps(key): returns whether a record contains results of steps.
local function has_steps(key) return type(redis.pcall('HGET', key, 'steps')) == 'string' end
-- expire(key, seconds): sets the expiry of a record, at least 30 days if it contains results of
-- steps.
local function expire(key, seconds)
  if has_steps(key) then seconds = math.max(tonumber(seconds), 2592000) end
  redis.pcall('EXPIRE', key, seconds)
end
-- delete_steps(key, seconds): removes the results of a task's steps, and keeps the rest of its
-- record for `seconds`.
local function delete_steps(key, seconds)
  if not has_steps(key) then return end
  redis.call('HDEL', key, 'steps')
  local flat = redis.call('HGETALL', key)
  for i = 1, #flat, 2 do
    if string.sub(flat[i], 1, 5) == 'step:' then redis.call('HDEL', key, flat[i]) end
  end
  redis.call('EXPIRE', key, seconds)
end
-- record(key, number, run, outcome, seconds): stores a run; the newest 20 runs are kept.
local function record(key, number, run, outcome, seconds)
  redis.pcall('HSET', key, 'n', number, 'outcome', outcome, number, run)
  if number > 20 then redis.pcall('HDEL', key, number - 20) end
  expire(key, seconds)
end
-- clock(): returns the server's time in ms.
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
-- record_run_end(key, seconds, head, took, now): records a run that ended at `now` (in ms),
-- replacing the record of its start. `head` is its JSON without the end ('' for none), `took` its
-- duration in ms.
local function record_run_end(key, seconds, head, took, now)
  if head == '' then
    if has_steps(key) then expire(key, seconds) end
    return
  end
  local began, number, open = now - tonumber(took), latest_run(key)
  local attempt = string.match(head, '^{"attempt":%d+,')
  if open and string.sub(open, 1, #attempt) == attempt then
    began = tonumber(string.match(open, '"began":(%d+)')) or began
  else
    number = number + 1
  end
  local run = head .. string.format(',"began":%d,"ended":%d}', began, now)
  record(key, number, run, string.match(head, '"outcome":"(%l+)"'), seconds)
end
