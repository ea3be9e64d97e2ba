"""Operations on the channel, notes and flags."""
