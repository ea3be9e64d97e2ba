-- heartbeat_worker(worker, number, state, at): records a worker's heartbeat, and returns its
-- orders, like the script `heartbeat_worker`. The first three KEYS are those of that script; its
-- other arguments begin at ARGV[at].
local function heartbeat_worker(worker, number, state, at)
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local fields = at + 1 + tonumber(ARGV[at + 1])
  local order, limit = '', ''
  for i, found in ipairs(replace(KEYS[3], 'HMGET', unpack(ARGV, at + 2, fields))) do
    if found and string.sub(ARGV[at + 1 + i], 1, 6) == 'limit:' then
      limit = found
    elseif found and order == '' then
      order = found
    end
  end
  local had = replace(KEYS[2], 'HMGET', 'number', 'state', 'stop', 'cancelled')
  local last = tonumber(had[1] or 0) or 0
  -- A late heartbeat must not overwrite a newer one.
  if tonumber(number) >= last then
    -- A worker that receives no order resumes, so do not report it as paused: it would seem to
    -- comply with the next order. The same heartbeat, resent, may have had this reply.
    if state == 'paused' and (order == '' or (tonumber(number) == last and had[2] ~= 'paused')) then state = 'working' end
    redis.call('HSET', KEYS[2], 'number', number, 'state', state, 'seen', now, unpack(ARGV, fields + 1))
    redis.call('HSETNX', KEYS[2], 'started', now)
    redis.call('EXPIRE', KEYS[2], ARGV[at])
    replace(KEYS[1], 'ZADD', now, worker)
  end
  local silent = {}
  if number == '1' then
    silent = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[at]) * 1000, 'LIMIT', 0, 100)
  end
  return { { order, limit, now }, had[3] and 1 or 0, silent, had[4] or '' }
end
