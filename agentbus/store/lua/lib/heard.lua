-- heard(info, key, field, at): returns how many entries the stream with this `info` had ever had up to the id `at`, by the record
-- in `field` of the hash `key`, nil if unknown; and whether an unknown number of those behind `at` may be gone. Another program
-- moves a cursor without a record, and may replace the stream.
local function heard(info, key, field, at)
  local trimmed = info['entries-added'] - info['length']
  local ms, seq = parts(at)
  -- A new reader has not missed what was trimmed before its first read.
  if ms == '' and seq == '' then return trimmed, false end
  -- The id of the last entry that XDEL removed.
  local deleted = newer(info['max-deleted-entry-id'] or '0-0', at)
  local record = redis.pcall('HGET', key, field)
  local id, ordinal = string.match(type(record) == 'string' and record or '', '^(%S+) (%d+)$')
  local known = id == at and tonumber(ordinal)
  local first = info['first-entry'] and info['first-entry'][1]
  if not newer(info['last-generated-id'], at) or (first and not newer(first, at)) then
    return known or nil, deleted
  end
  -- An entry beyond the trimmed ones would be there still.
  if known and known <= trimmed then return known, deleted end
  return trimmed, trimmed > 0 or known ~= false
end
