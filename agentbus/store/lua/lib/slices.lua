-- recorded(key, digest): returns whether a sink has already written this slice.
local function recorded(key, digest)
  return redis.call('ZSCORE', key, digest)
end
-- record(key, batch, digest, seconds): records that a slice of a batch was written, and forgets
-- slices of batches before the last one, which no query repeats.
local function record(key, batch, digest, seconds)
  redis.call('ZADD', key, batch, digest)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. string.format('%d', tonumber(batch) - 1))
  redis.call('EXPIRE', key, seconds)
end
