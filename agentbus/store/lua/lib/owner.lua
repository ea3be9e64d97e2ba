-- owns(stream, group, consumer, id): whether this consumer holds the entry now.
local function owns(stream, group, consumer, id)
  return #redis.call('XPENDING', stream, group, id, id, 1, consumer) == 1
end
