-- log_attempts(at, count, without): appends `count` attempts, as packed by a worker, to the attempt
-- log, which is the last of the keys. The words from ARGV[at] on are its bound, in entries of at
-- most 50 attempts (of larger entries it keeps fewer), and fields and values; `without` lists the positions (from 0) of attempts that this consumer no longer held,
-- which are logged when they are cut off. A corrupted log does not prevent the acknowledgement.
local function log_attempts(at, count, without)
  if #without >= count then return end
  local words = { unpack(ARGV, at + 1) }
  if #without > 0 then
    words[#words + 1] = 'without'
    words[#words + 1] = table.concat(without, ' ')
  end
  local bound = math.ceil(ARGV[at] * math.min(1, 50 / count))
  redis.pcall('XADD', KEYS[#KEYS], 'MAXLEN', '~', bound, '*', unpack(words))
end
