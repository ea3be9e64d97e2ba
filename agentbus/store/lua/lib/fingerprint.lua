-- fingerprint(error): returns the first line of an error, with quoted text, addresses, ids and numbers masked behind the
-- class at its beginning: errors of one cause have the same. The fingerprint of a fingerprint is itself.
local function fingerprint(error)
  local line = string.match(error, '^[^\r\n]*')
  local class, said = string.match(line, '^([%w_.]+: )(.*)$')
  if not class then class, said = '', line end
  for _, quote in ipairs({ "'", '"', '`' }) do
    said = string.gsub(said, quote .. '[^' .. quote .. ']*' .. quote, quote .. '*' .. quote)
  end
  said = string.gsub(said, '%a[%w+.-]*://%S+', '*')
  said = string.gsub(said, '[%w._+-]+@[%w.-]+', '*')
  said = string.gsub(said, '%x%x%x%x%x%x%x%x%-%x+%-%x+%-%x+%-%x+', '0')
  said = string.gsub(said, '%f[%w_][%w_]*%d[%w_]*', '0')
  -- Dates, times, versions and addresses are several numbers.
  local times
  repeat said, times = string.gsub(said, '0[-.:/,+]0', '0') until times == 0
  return class .. said
end
