-- Lets everybody use a store that was made closed.
redis.call('HDEL', KEYS[1], 'closed')
return {'ok'}
