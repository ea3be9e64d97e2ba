-- recorded(key, digest): returns whether a sink wrote this slice before.
local function recorded(key, digest)
  return redis.call('ZSCORE', key, digest)
end
-- record(key, batch, digest, seconds): notes that a slice of a batch was written, and forgets those of batches before the
-- last one: a query repeats no other.
local function record(key, batch, digest, seconds)
  redis.call('ZADD', key, batch, digest)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. string.format('%d', tonumber(batch) - 1))
  redis.call('EXPIRE', key, seconds)
end
