set local search_path = pg_catalog, pg_temp;
select gem.grant_to('gem_worker', 'usage on schema gem_leads');
