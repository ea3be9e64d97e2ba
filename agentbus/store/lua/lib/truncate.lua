-- truncate(value, width): returns the first bytes of a value, without an incomplete last character.
local function truncate(value, width)
  return #value <= width and value or (string.gsub(string.sub(value, 1, width), '[\192-\255][\128-\191]*$', ''))
end
