-- The rights of frontends, as in the core's functions/frontends.sql, and of operators.
set local search_path = pg_catalog, pg_temp;

select gem.open_to('service_role', 'public.' || t, 'gem_all_for_service_role', 'for select to %I using (true)'),
  gem.open_to('service_role', 'public.' || t, 'gem_new_for_service_role', 'for insert to %I with check (true)')
from unnest(array['extract_documents', 'extract_document_parts']) t;

do $$
declare
  api_role text;
begin
  foreach api_role in array array(select gem.api_roles()) loop
    execute format('revoke all on public.extract_documents, public.extract_document_parts, gem.extractions from %I',
      api_role);
    if api_role <> 'anon' then
      execute format('grant insert (id, title), select on public.extract_documents to %I', api_role);
      execute format('grant insert (document_id, seq, text), select on public.extract_document_parts to %I', api_role);
      -- for the view; everything else in it is closed to them
      execute format('grant usage on schema gem to %I', api_role);
      execute format('grant select on gem.extractions to %I', api_role);
    end if;
  end loop;
end
$$;
select gem.grant_to('service_role', 'insert (created_by) on public.extract_documents');
-- Operators can see where in a document a quote is.
select gem.grant_to('gem_operator', 'select on public.' || t),
  gem.open_to('gem_operator', 'public.' || t, 'gem_operator_reads', 'for select to %I using (true)')
from unnest(array['extract_documents', 'extract_document_parts']) t;
