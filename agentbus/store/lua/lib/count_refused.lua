-- Refusals are counted at once, but written to the metrics stream at most once a second for each queue, so that
-- a publisher that keeps retrying does not fill it.
local function report_refused(metrics, stats, bound, queue, pause)
  local kept = redis.pcall('HMGET', stats, 'refused', 'refused_told', 'refused_at')
  if kept['err'] then return end
  local all, told = tonumber(kept[1] or 0), tonumber(kept[2] or 0)
  if all <= told then return end
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local before = tonumber(kept[3] or 0)
  if now < before + pause then return end
  local id = redis.pcall('XADD', metrics, 'MAXLEN', '~', bound, '*', 'kind', 'refusal', 'version', 1, 'queue', queue,
    'from', string.format('%d', before > 0 and before or now), 'to', string.format('%d', now),
    'refused', string.format('%d', all - told))
  -- The refusal must reach the publisher even if another program has corrupted the stream.
  if type(id) == 'table' then return end
  redis.call('HSET', stats, 'refused_told', string.format('%d', all), 'refused_at', string.format('%d', now))
end
-- count_refused(metrics, stats, bound, queue, number): counts `number` refused tasks.
local function count_refused(metrics, stats, bound, queue, number)
  redis.pcall('HINCRBY', stats, 'refused', number)
  report_refused(metrics, stats, bound, queue, 1000)
end
