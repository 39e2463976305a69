select gem.grant_to('gem_worker', 'usage on schema gem_entity');
